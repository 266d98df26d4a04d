use super::*;

#[test]
fn what_is_no_model_is_refused() {
    assert!(Graph::parse(b"").is_err());
}
