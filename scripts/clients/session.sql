-- What a person types into psql in the first minutes.
CREATE TABLE city (id serial PRIMARY KEY, name varchar(40) NOT NULL, founded date, area numeric(10,2) DEFAULT 0.00, note text);
CREATE UNIQUE INDEX city_name ON city (name);
INSERT INTO city (name, founded, area) VALUES ('Mérida', '1542-01-06', 858.41), ('Valladolid', '1543-05-28', 945.22) RETURNING id;
INSERT INTO city (name) VALUES ('Mérida') ON CONFLICT (name) DO UPDATE SET note = 'again ' || excluded.name;
\d city
\dt
\di
\l
BEGIN;
UPDATE city SET area = area + 1 WHERE id = 1;
SAVEPOINT a;
DELETE FROM city;
ROLLBACK TO a;
COMMIT;
SELECT id, name, founded, area, note FROM city ORDER BY id;
SELECT date_trunc('century', founded) AS century, count(*), sum(area) FROM city GROUP BY 1 ORDER BY 1;
SELECT a.name, b.name FROM city a JOIN city b ON a.id < b.id WHERE a.area > (SELECT min(area) FROM city) OR true;
EXPLAIN SELECT * FROM city WHERE id = 1;
COPY city (id, name) TO STDOUT WITH (FORMAT csv, HEADER);
SELECT * FROM cenote_recovery;
SELECT * FROM cenote_memory;
SELECT count(*) >= 1 AS me_too FROM cenote_sessions;
VACUUM city;
ANALYZE;
DROP TABLE city;
