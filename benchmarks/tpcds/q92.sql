-- Discounts on web sales that exceed the usual ones of an item.
SELECT sum(ws_ext_discount_amt) AS excess_discount_amount
FROM web_sales AS sold
JOIN item ON i_item_sk = sold.ws_item_sk
JOIN date_dim ON d_date_sk = sold.ws_sold_date_sk
WHERE i_manufact_id < 400
  AND d_date BETWEEN DATE '2000-01-27' AND DATE '2000-01-27' + INTERVAL '90' DAY
  AND sold.ws_ext_discount_amt > (
      SELECT 1.3 * avg(other.ws_ext_discount_amt)
      FROM web_sales AS other
      JOIN date_dim AS day ON day.d_date_sk = other.ws_sold_date_sk
      WHERE other.ws_item_sk = item.i_item_sk
        AND day.d_date BETWEEN DATE '2000-01-27' AND DATE '2000-01-27' + INTERVAL '90' DAY
  )
