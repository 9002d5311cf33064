//! A server whose memory is as slow as a device: what it says, what it counts, what it refuses.

use crate::program::{Data, Process, cenote, output};

fn run_with(data: &Data, arguments: &[&str]) -> Process {
    let mut command = cenote(&[
        "run",
        "--memory-size",
        "64MiB",
        "--listen",
        "127.0.0.1:0",
        "--data",
        data.text(),
    ]);
    command.args(arguments);
    Process::spawn(command)
}

#[test]
fn everything_shown_says_that_it_is_emulated() {
    let data = Data::new();
    let server = run_with(&data, &["--device", "cxl-switch", "--device-cache", "1MiB"]);
    let said = server.said.join("\n");
    let line = |begin: &str| {
        server
            .said
            .iter()
            .find(|line| line.starts_with(begin))
            .unwrap_or_else(|| panic!("{begin} in {said}"))
    };
    let device = line("device ");
    assert!(
        device.contains("emulated cxl-switch") && device.contains("549 ns") && device.contains("1MiB"),
        "{device}"
    );
    assert!(line("ready").contains("emulated cxl-switch"), "{said}");

    let mut client = server.client();
    client
        .batch_execute("CREATE TABLE t (id int PRIMARY KEY, pad text)")
        .unwrap();
    for id in 0..200 {
        let insert = format!("INSERT INTO t VALUES ({id}, '{}')", "x".repeat(1000));
        client.batch_execute(&insert).unwrap();
    }
    let row = client.simple_query("CENOTE SHOW cenote_memory").unwrap();
    let row = row.iter().find_map(|m| match m {
        postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = row.expect("a row");
    assert_eq!(row.get("device"), Some("emulated cxl-switch"));
    let number = |column: &str| row.get(column).unwrap().parse::<f64>().unwrap();
    // 200 kB of rows went through a cache of 1 MiB, and their redo.
    assert!(number("lines_written") > 3000.0, "{}", number("lines_written"));
    assert!(number("lines_read") > 0.0 && number("stalled_ms") > 0.1, "{row:?}");

    let (ok, text) = output(&mut cenote(&["status", "--data", data.text()]));
    assert!(ok && text.matches("emulated cxl-switch").count() == 2, "{text}");
}

#[test]
fn private_memory_can_be_slow_too() {
    let data = Data::new();
    let server = run_with(&data, &["--memory", "dram", "--device", "cxl-fpga"]);
    let said = server.said.join("\n");
    assert!(
        said.contains("private memory (dram)") && said.contains("emulated cxl-fpga"),
        "{said}"
    );
}

#[test]
fn without_a_device_nothing_is_emulated() {
    let data = Data::new();
    let server = run_with(&data, &[]);
    let (ok, text) = output(&mut cenote(&["status", "--data", data.text()]));
    assert!(ok && !text.contains("emulated"), "{text}");
    assert!(!server.said.join("\n").contains("emulated"), "{:?}", server.said);
}

#[test]
fn the_device_comes_from_flag_environment_or_file() {
    let data = Data::new();
    std::fs::write(data.path().join("cenote.toml"), "device = \"cxl-direct\"\n").unwrap();
    assert!(run_with(&data, &[]).said.join("\n").contains("emulated cxl-direct"));
    let mut command = cenote(&[
        "run",
        "--memory-size",
        "64MiB",
        "--listen",
        "127.0.0.1:0",
        "--data",
        data.text(),
    ]);
    command.env("CENOTE_DEVICE", "dram-remote");
    assert!(Process::spawn(command).said.join("\n").contains("emulated dram-remote"));
}

#[test]
fn devices_are_listed_and_files_checked() {
    let (ok, text) = output(&mut cenote(&["devices"]));
    assert!(ok, "{text}");
    for word in [
        "name",
        "latency",
        "bandwidth",
        "source",
        "cxl-switch",
        "549.0 ns",
        "cxl-fpga",
        "This machine",
    ] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
    let data = Data::new();
    let file = data.path().join("lab.profiles");
    let path = file.to_str().unwrap();
    let devices = |content: &str| {
        std::fs::write(&file, content).unwrap();
        output(&mut cenote(&["devices", path]))
    };
    let (ok, text) = devices("[lab]\nsource = \"ours\"\nload_latency_ns = 312\nbandwidth = 28e9\n");
    assert!(
        ok && text.contains("312.0 ns") && text.contains("28.0 GB/s") && text.contains("in order"),
        "{text}"
    );
    let (ok, text) = devices("[lab]\nsource = \"ours\"\n");
    assert!(
        !ok && text.contains("load_latency_ns") && text.contains("lab.profiles"),
        "{text}"
    );
    let (ok, text) = devices("[lab]\nsource = \"ours\"\nload_latency_ns = -3\n");
    assert!(
        !ok && text.contains("load_latency_ns") && text.contains("1 to 1000000000"),
        "{text}"
    );
    let (ok, text) = output(&mut cenote(&["devices", "/nowhere.profiles"]));
    assert!(!ok && text.contains("/nowhere.profiles"), "{text}");
}

#[test]
fn devices_that_cannot_be_are_refused_before_the_server_starts() {
    let data = Data::new();
    let fails = |arguments: &[&str], says: &[&str]| {
        let (ok, text) = output(cenote(&["run", "--data", data.text()]).args(arguments));
        assert!(
            !ok && says.iter().all(|word| text.contains(word)),
            "{arguments:?}: {text}"
        );
    };
    fails(&["--device", "floppy"], &["floppy", "cxl-switch", "cxl-fpga"]);
    fails(&["--device", "storage"], &["storage", "cenote devices"]);
    fails(&["--device-cache", "8MiB"], &["--device"]);
    fails(
        &["--device", "dram", "--device-cache", "1KiB"],
        &["device_cache", "64KiB"],
    );
    let file = data.path().join("lab.profiles");
    std::fs::write(&file, "[lab]\nsource = \"ours\"\nload_latency_ns = fast\n").unwrap();
    fails(
        &["--device", file.to_str().unwrap()],
        &["lab.profiles", "load_latency_ns", "1 to 1000000000"],
    );
}
