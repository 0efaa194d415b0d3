CREATE MATERIALIZED VIEW totals AS
SELECT ce_type AS type, count(*) AS events, sum(get_json_object(CAST(ce_data AS STRING), '$.total')) AS total
FROM events
GROUP BY ce_type;
