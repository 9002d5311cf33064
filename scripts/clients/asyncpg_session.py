"""What a Python program does through asyncpg: prepared statements in binary, errors, transactions, settings, cursors
(portals that are fetched from in parts), a reset."""
import asyncio
import datetime
import decimal
import os

import asyncpg

ROWS = 2000


async def types(connection):
    await connection.execute("DROP TABLE IF EXISTS reading")
    await connection.execute(
        "CREATE TABLE reading (id bigint PRIMARY KEY, ok boolean, small smallint, level real, depth double precision,"
        " price numeric(12,3), name text, raw bytea, day date, at timestamp, seen timestamptz)"
    )
    row = (
        1, True, -7, 1.5, 2.25, decimal.Decimal("12.345"), "agua 水", b"\x00\xff", datetime.date(2024, 2, 29),
        datetime.datetime(2024, 2, 29, 12, 30, 0, 123456),
        datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.timezone.utc),
    )
    places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
    insert = await connection.prepare(f"INSERT INTO reading VALUES ({places})")
    await insert.fetch(*row)
    await insert.fetch(2, *[None] * (len(row) - 1))
    select = await connection.prepare("SELECT * FROM reading WHERE id = $1")
    assert [a.name for a in select.get_attributes()][:3] == ["id", "ok", "small"], select.get_attributes()
    assert tuple(await select.fetchrow(1)) == row
    assert tuple(await select.fetchrow(2)) == (2,) + (None,) * (len(row) - 1)
    assert await select.fetchrow(3) is None
    some = await connection.fetch("SELECT id FROM reading WHERE id = ANY($1::bigint[]) ORDER BY id", [2, 1, 9])
    assert some == [(1,), (2,)], some


async def errors(connection):
    try:
        await connection.execute("INSERT INTO reading (id) VALUES ($1)", 1)
        raise SystemExit("a duplicate key was taken")
    except asyncpg.UniqueViolationError as error:
        assert error.constraint_name, error
    try:
        await connection.prepare("SELECT nothing FROM reading")
        raise SystemExit("an unknown column was taken")
    except asyncpg.UndefinedColumnError:
        pass
    assert await connection.fetchval("SELECT count(*) FROM reading") == 2


async def transactions(connection):
    async with connection.transaction():
        await connection.execute("UPDATE reading SET level = level + 1")
        try:
            async with connection.transaction():
                await connection.execute("DELETE FROM reading")
                raise RuntimeError("undo the inner one")
        except RuntimeError:
            pass
    assert await connection.fetchval("SELECT level FROM reading WHERE id = 1") == 2.5
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.execute("SET application_name = 'undone'")
            await connection.execute("SELECT 1/(id - 1) FROM reading")
        raise SystemExit("a division by zero was taken")
    except asyncpg.DivisionByZeroError:
        pass
    assert connection.get_settings().application_name == "", connection.get_settings()


async def cursors(connection, other):
    """Rows that are changed while they are fetched come once each, and as they were when the cursor was opened."""
    await connection.execute("DROP TABLE IF EXISTS item")
    await connection.execute("CREATE TABLE item (id int PRIMARY KEY, v int)")
    await connection.execute("CREATE INDEX item_v ON item (v)")
    as_opened = [(n, n) for n in range(ROWS)]
    await connection.executemany("INSERT INTO item VALUES ($1, $2)", as_opened)
    for order in ("v", "id"):
        given = []
        transaction = connection.transaction()
        await transaction.start()
        async for row in connection.cursor(f"SELECT id, v FROM item WHERE v >= 0 ORDER BY {order}", prefetch=100):
            given.append(tuple(row))
            if len(given) % 100 == 50:
                last = row["id"]
                await connection.execute("UPDATE item SET v = v + 100000 WHERE id BETWEEN $1 AND $2", last - 40, last)
                await other.execute("DELETE FROM item WHERE id = $1", last + 200)
                await other.execute("INSERT INTO item VALUES ($1, $2)", ROWS + last, last + 200)
        await transaction.rollback()
        assert given == as_opened, f"by {order}: {len(given)} rows"
        await other.execute("DELETE FROM item")
        await other.executemany("INSERT INTO item VALUES ($1, $2)", as_opened)
    async with connection.transaction():
        cursor = await connection.cursor("SELECT id FROM item ORDER BY id")
        assert [row["id"] for row in await cursor.fetch(3)] == [0, 1, 2]
        assert (await cursor.fetchrow())["id"] == 3
    await connection.execute("DROP TABLE item")


async def main():
    connect = dict(host=os.environ["PGHOST"], port=int(os.environ["PGPORT"]), user="cenote", database="cenote")
    connection = await asyncpg.connect(**connect, timeout=10, command_timeout=60)
    other = await asyncpg.connect(**connect, timeout=10, command_timeout=60)
    await types(connection)
    await errors(connection)
    await transactions(connection)
    await cursors(connection, other)
    await connection.execute("DROP TABLE reading")
    await connection.reset()
    await connection.close()
    await other.close()


asyncio.run(main())
print("asyncpg: ok")
