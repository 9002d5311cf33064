"""What a Python program does through psycopg: parameters in text and binary, errors, transactions, COPY."""
import datetime
import decimal

import psycopg

with psycopg.connect("") as connection:
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS reading")
        cursor.execute(
            "CREATE TABLE reading (id bigint PRIMARY KEY, ok boolean, level real, depth double precision,"
            " price numeric(12,3), name text, raw bytea, day date, at timestamp, seen timestamptz)"
        )
        row = (
            1, True, 1.5, 2.25, decimal.Decimal("12.345"), "agua 水", b"\x00\xff", datetime.date(2024, 2, 29),
            datetime.datetime(2024, 2, 29, 12, 30, 0, 123456),
            datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.timezone.utc),
        )
        cursor.execute("INSERT INTO reading VALUES (%s,%s,%s,%s,%s,%s,%s,%s,%s,%s)", row)
        for binary in (False, True):
            with connection.cursor(binary=binary) as reader:
                reader.execute("SELECT * FROM reading WHERE id = %s", (1,))
                assert reader.fetchone() == row, (binary, reader)
    connection.commit()

    try:
        connection.execute("INSERT INTO reading (id) VALUES (1)")
        raise SystemExit("a duplicate key was taken")
    except psycopg.errors.UniqueViolation as error:
        assert error.diag.constraint_name, error.diag
    connection.rollback()

    try:
        connection.execute("SELECT 2147483647::int + 1")
        raise SystemExit("an integer overflow was wrapped")
    except psycopg.errors.NumericValueOutOfRange:
        connection.rollback()

    with connection.transaction():
        connection.execute("UPDATE reading SET level = level + 1")
        try:
            with connection.transaction():
                connection.execute("DELETE FROM reading")
                raise RuntimeError("undo the inner one")
        except RuntimeError:
            pass
    assert connection.execute("SELECT level FROM reading").fetchone() == (2.5,)

    with connection.cursor() as cursor:
        with cursor.copy("COPY reading (id, name) FROM STDIN") as copy:
            for i in range(2, 1002):
                copy.write_row((i, f"row {i}\twith a tab"))
        cursor.execute("SELECT count(*), min(name), sum(id) FROM reading")
        assert cursor.fetchone() == (1001, "agua 水", 501501)
        cursor.execute("SELECT id FROM reading WHERE id = ANY(%s) ORDER BY id", ([5, 3, 9999],))
        assert cursor.fetchall() == [(3,), (5,)]
    connection.execute("DROP TABLE reading")
print("psycopg: ok")
