//! Programs in C and in Python make mirrored spaces, write, and go on with all that was acknowledged when the memory node
//! is lost with its memory.

#[path = "../../pool/tests/common/mod.rs"]
mod common;
#[path = "common/mod.rs"]
mod installed;
#[path = "../../pool/tests/common/lost_nodes.rs"]
mod lost_nodes;

use installed::{C99, Place, is_here, repository};
use lost_nodes::{Pool, be_a_node, can_run};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

#[test]
fn another_process() {
    be_a_node();
}

/// A program in another language; its process ends with it.
struct Program {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Program {
    fn start(mut command: Command, pool: &Pool) -> Self {
        command.arg(pool.manager.address());
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = piped.spawn().expect("a process");
        let lines = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { process, lines }
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn go_on(&mut self) {
        let mut input = self.process.stdin.take().expect("a pipe");
        writeln!(input, "go on").expect("told");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[test]
fn spaces_made_in_other_languages_outlive_their_node() {
    if !can_run() {
        return;
    }
    let place = Place::new();
    let tests = repository().join("crates/capi/tests");
    let mut commands = vec![place.command(place.compile(C99, &tests.join("c/mirrored.c")))];
    if is_here("python3") {
        let mut python = place.python(&["-W", "error"]);
        python.arg(tests.join("python/mirrored.py"));
        commands.push(python);
    }
    let mut pool = Pool::new(2, 64);
    let start = |command| Program::start(command, &pool);
    let mut programs: Vec<_> = commands.into_iter().map(start).collect();
    programs.iter_mut().for_each(|one| assert_eq!(one.says(), "written"));
    pool.until_whole();
    pool.lose(0);
    programs.iter_mut().for_each(Program::go_on);
    for program in &mut programs {
        assert_eq!(program.says(), "all there");
        assert!(program.process.wait().expect("ended").success());
    }
}
