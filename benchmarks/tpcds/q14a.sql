-- Brands sold in all three channels: those of one month above the average sale, rolled up from channel to category.
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
)
SELECT
    channel,
    i_brand_id,
    i_class_id,
    i_category_id,
    sum(sales) AS sum_sales,
    sum(number_sales) AS sum_number_sales
FROM (
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
      AND d_year = 1999 + 2
      AND d_moy = 11
    GROUP BY i_brand_id, i_class_id, i_category_id
    HAVING sum(ss_quantity * ss_list_price) > (SELECT average_sales FROM avg_sales)
    UNION ALL
    SELECT
        'catalog',
        i_brand_id,
        i_class_id,
        i_category_id,
        sum(cs_quantity * cs_list_price),
        count(*)
    FROM catalog_sales
    JOIN item ON i_item_sk = cs_item_sk
    JOIN date_dim ON d_date_sk = cs_sold_date_sk
    WHERE cs_item_sk IN (SELECT cross_item_sk FROM cross_items)
      AND d_year = 1999 + 2
      AND d_moy = 11
    GROUP BY i_brand_id, i_class_id, i_category_id
    HAVING sum(cs_quantity * cs_list_price) > (SELECT average_sales FROM avg_sales)
    UNION ALL
    SELECT
        'web',
        i_brand_id,
        i_class_id,
        i_category_id,
        sum(ws_quantity * ws_list_price),
        count(*)
    FROM web_sales
    JOIN item ON i_item_sk = ws_item_sk
    JOIN date_dim ON d_date_sk = ws_sold_date_sk
    WHERE ws_item_sk IN (SELECT cross_item_sk FROM cross_items)
      AND d_year = 1999 + 2
      AND d_moy = 11
    GROUP BY i_brand_id, i_class_id, i_category_id
    HAVING sum(ws_quantity * ws_list_price) > (SELECT average_sales FROM avg_sales)
) AS channels
GROUP BY ROLLUP (channel, i_brand_id, i_class_id, i_category_id)
ORDER BY channel, i_brand_id, i_class_id, i_category_id
LIMIT 100
