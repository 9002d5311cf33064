//! Profiles that lie in files.

use cenote_base::rt;
use cenote_fabric::profile::find;
use cenote_testkit::faulty::MemFs;

#[test]
fn files_of_profiles_are_found() {
    let files = std::sync::Arc::new(MemFs::new());
    rt::fs::with(files, || {
        let one = b"[lab]\nsource = \"s\"\nload_latency_ns = 300\n";
        rt::fs::replace("one.toml", one).expect("written");
        rt::fs::replace("two.toml", [&one[..], b"[b]\nlike=\"lab\"\n"].concat().as_slice()).expect("written");
        assert_eq!(find("one.toml").expect("there").name, "lab");
        assert_eq!(find("two.toml:b").expect("there").name, "b");
        assert_eq!(find("dram").expect("known").name, "dram");
        for (text, says) in [
            ("two.toml", "say two.toml:NAME, with one of lab, b"),
            ("two.toml:c", "no profile \"c\"; there are lab, b"),
            ("nowhere.toml", "nor is there a file"),
        ] {
            let error = find(text).expect_err(text).to_string();
            assert!(error.contains(says), "{error}");
        }
    });
}
