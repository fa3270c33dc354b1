-- Brands sold in all three channels: a week in December of one year beside the same week of the year before, in stores.
WITH cross_items AS (
    SELECT i_item_sk AS cross_item_sk
    FROM item
    JOIN (
        SELECT sold.i_brand_id AS brand_id, sold.i_class_id AS class_id, sold.i_category_id AS category_id
        FROM store_sales
        JOIN item AS sold ON sold.i_item_sk = ss_item_sk
        JOIN date_dim ON d_date_sk = ss_sold_date_sk
        WHERE d_year BETWEEN 1999 AND 1999 + 2
        INTERSECT
        SELECT sold.i_brand_id, sold.i_class_id, sold.i_category_id
        FROM catalog_sales
        JOIN item AS sold ON sold.i_item_sk = cs_item_sk
        JOIN date_dim ON d_date_sk = cs_sold_date_sk
        WHERE d_year BETWEEN 1999 AND 1999 + 2
        INTERSECT
        SELECT sold.i_brand_id, sold.i_class_id, sold.i_category_id
        FROM web_sales
        JOIN item AS sold ON sold.i_item_sk = ws_item_sk
        JOIN date_dim ON d_date_sk = ws_sold_date_sk
        WHERE d_year BETWEEN 1999 AND 1999 + 2
    ) AS everywhere ON i_brand_id = brand_id AND i_class_id = class_id AND i_category_id = category_id
),
avg_sales AS (
    SELECT avg(quantity * list_price) AS average_sales
    FROM (
        SELECT ss_quantity AS quantity, ss_list_price AS list_price
        FROM store_sales
        JOIN date_dim ON d_date_sk = ss_sold_date_sk
        WHERE d_year BETWEEN 1999 AND 1999 + 2
        UNION ALL
        SELECT cs_quantity, cs_list_price
        FROM catalog_sales
        JOIN date_dim ON d_date_sk = cs_sold_date_sk
        WHERE d_year BETWEEN 1999 AND 1999 + 2
        UNION ALL
        SELECT ws_quantity, ws_list_price
        FROM web_sales
        JOIN date_dim ON d_date_sk = ws_sold_date_sk
        WHERE d_year BETWEEN 1999 AND 1999 + 2
    ) AS every_sale
),
this_year AS (
    SELECT
        'store' AS channel,
        i_brand_id,
        i_class_id,
        i_category_id,
        sum(ss_quantity * ss_list_price) AS sales,
        count(*) AS number_sales
    FROM store_sales
    JOIN item ON i_item_sk = ss_item_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE ss_item_sk IN (SELECT cross_item_sk FROM cross_items)
      AND d_week_seq = (SELECT d_week_seq FROM date_dim WHERE d_year = 1999 + 1 AND d_moy = 12 AND d_dom = 11)
    GROUP BY i_brand_id, i_class_id, i_category_id
    HAVING sum(ss_quantity * ss_list_price) > (SELECT average_sales FROM avg_sales)
),
last_year AS (
    SELECT
        'store' AS channel,
        i_brand_id,
        i_class_id,
        i_category_id,
        sum(ss_quantity * ss_list_price) AS sales,
        count(*) AS number_sales
    FROM store_sales
    JOIN item ON i_item_sk = ss_item_sk
    JOIN date_dim ON d_date_sk = ss_sold_date_sk
    WHERE ss_item_sk IN (SELECT cross_item_sk FROM cross_items)
      AND d_week_seq = (SELECT d_week_seq FROM date_dim WHERE d_year = 1999 AND d_moy = 12 AND d_dom = 11)
    GROUP BY i_brand_id, i_class_id, i_category_id
    HAVING sum(ss_quantity * ss_list_price) > (SELECT average_sales FROM avg_sales)
)
SELECT
    this_year.channel AS ty_channel,
    this_year.i_brand_id AS ty_brand,
    this_year.i_class_id AS ty_class,
    this_year.i_category_id AS ty_category,
    this_year.sales AS ty_sales,
    this_year.number_sales AS ty_number_sales,
    last_year.channel AS ly_channel,
    last_year.i_brand_id AS ly_brand,
    last_year.i_class_id AS ly_class,
    last_year.i_category_id AS ly_category,
    last_year.sales AS ly_sales,
    last_year.number_sales AS ly_number_sales
FROM this_year
JOIN last_year
    ON last_year.i_brand_id = this_year.i_brand_id
    AND last_year.i_class_id = this_year.i_class_id
    AND last_year.i_category_id = this_year.i_category_id
ORDER BY ty_channel, ty_brand, ty_class, ty_category
LIMIT 100
