//! The statements, each prepared once a terminal.

/// A statement of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sql {
    CustomerAndTax,
    DistrictForOrder,
    AdvanceDistrict,
    InsertOrder,
    InsertNewOrder,
    Item,
    Stock,
    UpdateStock,
    InsertLine,
    PayWarehouse,
    Warehouse,
    PayDistrict,
    District,
    CustomersByName,
    CustomerForPayment,
    PayCustomer,
    PayBadCustomer,
    InsertHistory,
    CustomerBalance,
    LastOrder,
    Lines,
    OldestNewOrder,
    DeleteNewOrder,
    OrderCustomer,
    SetCarrier,
    DeliverLines,
    SumLines,
    DeliverCustomer,
    NextOrder,
    LowStock,
}

/// Its text, and literals for its parameters where the server is asked how it carries it out.
pub struct Text {
    pub sql: Sql,
    pub text: &'static str,
    pub samples: &'static [&'static str],
}

const fn text(sql: Sql, text: &'static str, samples: &'static [&'static str]) -> Text {
    Text { sql, text, samples }
}

const DAY: &str = "'2024-01-01 00:00:00'";

/// All of them, by number.
pub const STATEMENTS: [Text; 30] = [
    // New order (clause 2.4.2).
    text(
        Sql::CustomerAndTax,
        "SELECT c_discount, c_last, c_credit, w_tax FROM customer, warehouse \
         WHERE w_id = $1 AND c_w_id = w_id AND c_d_id = $2 AND c_id = $3",
        &["1", "2", "3"],
    ),
    text(
        Sql::DistrictForOrder,
        "SELECT d_next_o_id, d_tax FROM district WHERE d_w_id = $1 AND d_id = $2 FOR UPDATE",
        &["1", "2"],
    ),
    text(
        Sql::AdvanceDistrict,
        "UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = $1 AND d_id = $2",
        &["1", "2"],
    ),
    text(
        Sql::InsertOrder,
        "INSERT INTO orders (o_w_id, o_d_id, o_id, o_c_id, o_entry_d, o_ol_cnt, o_all_local) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
        &["1", "2", "9999", "4", DAY, "5", "1"],
    ),
    text(
        Sql::InsertNewOrder,
        "INSERT INTO new_order (no_w_id, no_d_id, no_o_id) VALUES ($1, $2, $3)",
        &["1", "2", "9999"],
    ),
    text(
        Sql::Item,
        "SELECT i_price, i_name, i_data FROM item WHERE i_id = $1",
        &["1"],
    ),
    text(
        Sql::Stock,
        "SELECT s_quantity, s_data, s_dist_01, s_dist_02, s_dist_03, s_dist_04, s_dist_05, s_dist_06, s_dist_07, \
         s_dist_08, s_dist_09, s_dist_10 FROM stock WHERE s_w_id = $1 AND s_i_id = $2 FOR UPDATE",
        &["1", "2"],
    ),
    text(
        Sql::UpdateStock,
        "UPDATE stock SET s_quantity = $3, s_ytd = s_ytd + $4, s_order_cnt = s_order_cnt + 1, \
         s_remote_cnt = s_remote_cnt + $5 WHERE s_w_id = $1 AND s_i_id = $2",
        &["1", "2", "50", "5", "0"],
    ),
    text(
        Sql::InsertLine,
        "INSERT INTO order_line (ol_w_id, ol_d_id, ol_o_id, ol_number, ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, \
         ol_dist_info) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        &["1", "2", "9999", "1", "5", "1", "5", "12.34", "'info'"],
    ),
    // Payment (clause 2.5.2).
    text(
        Sql::PayWarehouse,
        "UPDATE warehouse SET w_ytd = w_ytd + $2 WHERE w_id = $1",
        &["1", "12.34"],
    ),
    text(
        Sql::Warehouse,
        "SELECT w_name, w_street_1, w_street_2, w_city, w_state, w_zip FROM warehouse WHERE w_id = $1",
        &["1"],
    ),
    text(
        Sql::PayDistrict,
        "UPDATE district SET d_ytd = d_ytd + $3 WHERE d_w_id = $1 AND d_id = $2",
        &["1", "2", "12.34"],
    ),
    text(
        Sql::District,
        "SELECT d_name, d_street_1, d_street_2, d_city, d_state, d_zip FROM district WHERE d_w_id = $1 AND d_id = $2",
        &["1", "2"],
    ),
    text(
        Sql::CustomersByName,
        "SELECT c_id FROM customer WHERE c_w_id = $1 AND c_d_id = $2 AND c_last = $3 ORDER BY c_first",
        &["1", "2", "'BARBARBAR'"],
    ),
    text(
        Sql::CustomerForPayment,
        "SELECT c_first, c_middle, c_last, c_street_1, c_street_2, c_city, c_state, c_zip, c_phone, c_since, c_credit, \
         c_credit_lim, c_discount, c_balance, c_data FROM customer WHERE c_w_id = $1 AND c_d_id = $2 AND c_id = $3 \
         FOR UPDATE",
        &["1", "2", "3"],
    ),
    text(
        Sql::PayCustomer,
        "UPDATE customer SET c_balance = c_balance - $4, c_ytd_payment = c_ytd_payment + $5, \
         c_payment_cnt = c_payment_cnt + 1 WHERE c_w_id = $1 AND c_d_id = $2 AND c_id = $3",
        &["1", "2", "3", "12.34", "12.34"],
    ),
    text(
        Sql::PayBadCustomer,
        "UPDATE customer SET c_balance = c_balance - $4, c_ytd_payment = c_ytd_payment + $5, \
         c_payment_cnt = c_payment_cnt + 1, c_data = $6 WHERE c_w_id = $1 AND c_d_id = $2 AND c_id = $3",
        &["1", "2", "3", "12.34", "12.34", "'data'"],
    ),
    text(
        Sql::InsertHistory,
        "INSERT INTO history (h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_date, h_amount, h_data) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        &["3", "2", "1", "2", "1", DAY, "12.34", "'data'"],
    ),
    // Order status (clause 2.6.2).
    text(
        Sql::CustomerBalance,
        "SELECT c_balance, c_first, c_middle, c_last FROM customer WHERE c_w_id = $1 AND c_d_id = $2 AND c_id = $3",
        &["1", "2", "3"],
    ),
    text(
        Sql::LastOrder,
        "SELECT o_id, o_carrier_id, o_entry_d FROM orders WHERE o_w_id = $1 AND o_d_id = $2 AND o_c_id = $3 \
         ORDER BY o_id DESC LIMIT 1",
        &["1", "2", "3"],
    ),
    text(
        Sql::Lines,
        "SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d FROM order_line \
         WHERE ol_w_id = $1 AND ol_d_id = $2 AND ol_o_id = $3",
        &["1", "2", "3"],
    ),
    // Delivery (clause 2.7.4).
    text(
        Sql::OldestNewOrder,
        "SELECT no_o_id FROM new_order WHERE no_w_id = $1 AND no_d_id = $2 ORDER BY no_o_id LIMIT 1 FOR UPDATE",
        &["1", "2"],
    ),
    text(
        Sql::DeleteNewOrder,
        "DELETE FROM new_order WHERE no_w_id = $1 AND no_d_id = $2 AND no_o_id = $3",
        &["1", "2", "9999"],
    ),
    text(
        Sql::OrderCustomer,
        "SELECT o_c_id FROM orders WHERE o_w_id = $1 AND o_d_id = $2 AND o_id = $3",
        &["1", "2", "3"],
    ),
    text(
        Sql::SetCarrier,
        "UPDATE orders SET o_carrier_id = $4 WHERE o_w_id = $1 AND o_d_id = $2 AND o_id = $3",
        &["1", "2", "3", "4"],
    ),
    text(
        Sql::DeliverLines,
        "UPDATE order_line SET ol_delivery_d = $4 WHERE ol_w_id = $1 AND ol_d_id = $2 AND ol_o_id = $3",
        &["1", "2", "3", DAY],
    ),
    text(
        Sql::SumLines,
        "SELECT sum(ol_amount) FROM order_line WHERE ol_w_id = $1 AND ol_d_id = $2 AND ol_o_id = $3",
        &["1", "2", "3"],
    ),
    text(
        Sql::DeliverCustomer,
        "UPDATE customer SET c_balance = c_balance + $4, c_delivery_cnt = c_delivery_cnt + 1 \
         WHERE c_w_id = $1 AND c_d_id = $2 AND c_id = $3",
        &["1", "2", "3", "12.34"],
    ),
    // Stock level (clause 2.8.2).
    text(
        Sql::NextOrder,
        "SELECT d_next_o_id FROM district WHERE d_w_id = $1 AND d_id = $2",
        &["1", "2"],
    ),
    text(
        Sql::LowStock,
        "SELECT count(DISTINCT s_i_id) FROM order_line, stock WHERE ol_w_id = $1 AND ol_d_id = $2 AND ol_o_id < $3 \
         AND ol_o_id >= $4 AND s_w_id = $1 AND s_i_id = ol_i_id AND s_quantity < $5",
        &["1", "2", "3001", "2981", "15"],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_statement_is_at_its_number_and_has_a_sample_of_each_parameter() {
        for (n, text) in STATEMENTS.iter().enumerate() {
            assert_eq!(text.sql as usize, n, "{}", text.text);
            let count = text.samples.len();
            let has = |n: usize| text.text.contains(&format!("${n}"));
            assert!((1..=count).all(has) && !has(count + 1), "{}", text.text);
        }
    }
}
