//! The guard without `run`: the library preloaded and a limit in the environment.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use plimsoll_guard::watch::VARIABLE;

use crate::needs::{has, works};
use crate::stage::{MIB, Running, Stage, built, text};

const GIB: u64 = 1024 * MIB;

/// A program with the guard and a limit, and no run.
fn alone(stage: &Stage, limit: &str, program: &str) -> Command {
    let mut command = stage.bare(program);
    command.env("LD_PRELOAD", built().join("guard.so")).env("PLIMSOLL_GPU_MEM_LIMIT", limit);
    command.env("PLIMSOLL_RESERVE", "0").env_remove(VARIABLE);
    command
}

fn keeper(stage: &Stage) -> Command {
    let mut command = alone(stage, "1GiB", "attacker");
    command.args(["keep", "700"]);
    command
}

#[test]
fn a_limit_in_the_environment_is_held() {
    for (limit, count) in [("1GiB", 16), ("512MiB", 8), ("2gib", 32), ("1073741824B", 16)] {
        let stage = Stage::new();
        let found = text(alone(&stage, limit, "opened").arg("fill").output().unwrap());
        assert!(found.contains(&format!(" count {count} code 2 left 0\nafter 1\n")), "{found}");
        assert_eq!(stage.most(0), count * 64 * MIB, "{limit}");
    }
}

#[test]
fn devices_have_limits_of_their_own_there_too() {
    let stage = Stage::new().set("FAKE_DEVICES", 2);
    let filled = |device: &str| {
        let mut command = alone(&stage, "1GiB", "opened");
        command.env("PLIMSOLL_GPU_MEM_LIMIT_1", "512MiB").env("DEVICE", device).arg("fill");
        text(command.output().unwrap())
    };
    assert!(filled("0").contains(" count 16 "));
    assert!(filled("1").contains(" count 8 "));
    assert_eq!((stage.most(0), stage.most(1)), (GIB, GIB / 2));
}

/// The first program makes the ledger. Programs that it starts share it, even after it has ended.
#[test]
fn children_share_the_budget_of_whom_they_come_from() {
    let stage = Stage::new();
    let client = built().join("attacker").display().to_string();
    // In the background they would have no input, by which they end. The last one has another
    // parent, as its own has ended.
    let script = "exec 9<&0; for i in 1 2; do \"$0\" keep 700 <&9 & done; (\"$0\" keep 700 <&9 &)
        wait";
    let mut all = Running::new(alone(&stage, "1GiB", "bash").args(["-c", script, &client]));
    let said = [(); 3].map(|()| all.line());
    let count = |line: &str| said.iter().filter(|one| *one == line).count();
    assert_eq!((count("keeps 1 refused 0"), count("keeps 0 refused 1")), (1, 2), "{said:?}");
    assert!(all.end().success());
    assert!(stage.most(0) <= GIB, "{} MiB", stage.most(0) / MIB);
}

#[test]
fn programs_that_have_nothing_to_do_with_each_other_have_budgets_of_their_own() {
    // With contexts that take memory, as real ones do: NVML's list of processes separates it from
    // what the other program takes at the same moment.
    let stage = Stage::new().set("FAKE_CONTEXT", 40 * MIB);
    let mut two = [Running::new(&mut keeper(&stage)), Running::new(&mut keeper(&stage))];
    two.iter_mut().for_each(|one| assert_eq!(one.line(), "keeps 1 refused 0"));
    // Neither has more than its own.
    let mut third = alone(&stage, "1GiB", "attacker");
    assert_eq!(
        text(third.args(["keep", "700", "2", "0"]).output().unwrap()),
        "keeps 1 refused 1\n"
    );
}

#[test]
fn a_folder_in_the_environment_is_shared_by_all_that_name_it() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["there", "not-there-yet"] {
        let stage = Stage::new();
        let shared = folder.path().join(name);
        if name == "there" {
            std::fs::create_dir(&shared).unwrap();
        }
        let start = || Running::new(keeper(&stage).env(VARIABLE, &shared));
        let mut first = start();
        assert_eq!(first.line(), "keeps 1 refused 0", "{name}");
        let mut second = start();
        assert_eq!(second.line(), "keeps 0 refused 1", "{name}");
        first.kill();
        let mut third = start();
        assert_eq!(third.line(), "keeps 1 refused 0", "{name}: the dead make room");
        assert!(stage.most(0) <= GIB, "{name}: {} MiB", stage.most(0) / MIB);
    }
}

/// An entry point as root that starts its program as another user, as containers do. What root made
/// for itself that user cannot open, so the program gets counters of its own; in a folder that both
/// name, it is refused.
#[test]
fn a_program_that_became_another_user_is_held_too() {
    let words = ["--reuid", "65534", "--clear-groups", "--"];
    if !has("setpriv as root", works("setpriv", &[&words[..], &["true"]].concat())) {
        return;
    }
    // Where every user can read them; target/ may lie below a folder of root's.
    let public = tempfile::tempdir_in("/tmp").unwrap();
    let all = |path: &Path| {
        std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    };
    all(public.path());
    for name in ["guard.so", "libcuda.so.1", "opened"] {
        std::fs::copy(built().join(name), public.path().join(name)).unwrap();
        all(&public.path().join(name));
    }
    let stage = Stage::new();
    let filled = |script: &str, folder: Option<&Path>| {
        let mut command = alone(&stage, "1GiB", "sh");
        command.args(["-c", script, "sh", "setpriv"]).args(words);
        command.arg(public.path().join("opened")).arg("fill");
        command.env("LD_PRELOAD", public.path().join("guard.so"));
        command.env("LD_LIBRARY_PATH", public.path()).env_remove("FAKE_CUDA_STATE");
        folder.map(|folder| command.env(VARIABLE, folder));
        let output = command.output().unwrap();
        let read = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (read(&output.stdout), read(&output.stderr))
    };
    let (out, said) = filled("\"$@\"", None);
    assert!(out.contains(" count 16 code 2 "), "{out}{said}");
    let shared = tempfile::tempdir().unwrap();
    let (out, said) = filled("\"$@\"", Some(&shared.path().join("named")));
    assert!(!out.contains(" count "), "{out}{said}");
    assert!(said.contains("belong to another user; name another folder"), "{said}");
}

/// Many processes at once make one ledger, not one each.
#[test]
fn who_comes_at_the_same_time_finds_the_same_books() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..5 {
        let stage = Stage::new();
        let shared = folder.path().join(round.to_string());
        let start = |_| Running::new(keeper(&stage).env(VARIABLE, &shared));
        let mut all: Vec<_> = (0..8).map(start).collect();
        let said: Vec<_> = all.iter_mut().map(Running::line).collect();
        let granted = said.iter().filter(|line| *line == "keeps 1 refused 0").count();
        assert_eq!(granted, 1, "round {round}: {said:?}");
        assert!(stage.most(0) <= GIB, "round {round}: {} MiB", stage.most(0) / MIB);
    }
}

/// A limit that cannot be parsed cannot be enforced: the guard says so, and all GPU memory is
/// refused.
#[test]
fn a_limit_that_means_nothing_is_refused_and_said() {
    for limit in ["", "8", "banana", "-1GiB", "99999999999999GiB", "1GiBB"] {
        let stage = Stage::new();
        let output = alone(&stage, limit, "attacker").args(["keep", "64", "4", "0"]).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("PLIMSOLL_GPU_MEM_LIMIT"), "{limit:?}: {said:?}");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!out.contains("keeps 4"), "{limit:?}: {out}");
        let most = std::fs::metadata(stage.books()).map_or(0, |_| stage.most(0));
        assert_eq!(most, 0, "{limit:?}");
    }
}

/// A typing error in a variable's name.
#[test]
fn a_limit_of_a_name_that_means_nothing_is_refused_and_said() {
    for name in ["PLIMSOLL_GPU_MEM_LIMT", "PLIMSOLL_GPU_MEM_LIMIT_16", "PLIMSOLL_GPU_MEM_LIMIT_01"]
    {
        let stage = Stage::new();
        let mut command = alone(&stage, "1GiB", "attacker");
        let output = command.args(["keep", "64", "4", "0"]).env(name, "2GiB").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("PLIMSOLL_GPU variable that"), "{name}: {said:?}");
        let most = std::fs::metadata(stage.books()).map_or(0, |_| stage.most(0));
        assert_eq!(most, 0, "{name}");
    }
}

#[test]
fn without_a_limit_in_the_environment_the_library_does_nothing() {
    let stage = Stage::new().set("FAKE_TOTAL", 4096 * MIB);
    let mut command = alone(&stage, "", "opened");
    command.env_remove("PLIMSOLL_GPU_MEM_LIMIT");
    let found = text(command.arg("fill").output().unwrap());
    assert_eq!(found, "total 4096 4096 count 64 code 2 left 0\nafter 1\n");
}

/// No process is left to remove the ledger after the last one, so the next start does. In a
/// `/dev/shm` of its own, where no other program is.
#[test]
fn what_ended_trees_left_behind_is_swept_by_the_next() {
    if !has("namespaces", works("unshare", &["-m", "mount", "-t", "tmpfs", "none", "/dev/shm"])) {
        return;
    }
    let stage = Stage::new();
    let client = built().join("attacker").display().to_string();
    let script = "mount -t tmpfs none /dev/shm && export TMPDIR=$1 LD_PRELOAD=$2
        for i in 1 2 3 4 5 6; do \"$0\" keep 64 1 0; done
        unset LD_PRELOAD; ls /dev/shm $TMPDIR | grep -c plimsoll; du -sm /dev/shm | cut -f1";
    let folder = tempfile::tempdir().unwrap();
    let mut command = stage.bare("unshare");
    command.env("PLIMSOLL_GPU_MEM_LIMIT", "1GiB").env("FAKE_CUDA_STATE", folder.path().join("b"));
    command.args(["-m", "bash", "-c", script, &client]).arg(folder.path());
    let found = text(command.arg(built().join("guard.so")).output().unwrap());
    let lines: Vec<_> = found.lines().collect();
    assert!(lines[..6].iter().all(|line| *line == "keeps 1 refused 0"), "{found}");
    let left: u32 = lines[6].parse().unwrap();
    assert!(left <= 1, "{left} folders for one after the other: {found}");
    assert!(lines[7].parse::<u32>().unwrap() <= 8, "MiB: {found}");
}

/// A real container: another root, another `/dev/shm`, other PIDs; the limit is its own.
#[test]
fn a_container_with_the_guard_in_its_environment_is_held() {
    let podman = ["--cgroup-manager=cgroupfs", "--runtime", "runc", "run", "--rm"];
    let how = ["--network=none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"];
    let whole = ["--rootfs", "/:O"];
    if !has("podman", works("podman", &[&podman[..], &how, &whole, &["true"]].concat())) {
        return;
    }
    let stage = Stage::new();
    let variables = [
        format!("LD_PRELOAD={}", built().join("guard.so").display()),
        format!("LD_LIBRARY_PATH={}", built().display()),
        "PLIMSOLL_GPU_MEM_LIMIT=1GiB".to_string(),
        "PLIMSOLL_RESERVE=0".to_string(),
        "WAY=dlsym".to_string(),
        "FAKE_CUDA_STATE=/tmp/books".to_string(),
    ];
    let mut command = stage.bare("podman");
    command.args(podman).args(how);
    command.args(variables.iter().flat_map(|variable| ["-e", variable]));
    command.args(whole).arg(built().join("opened")).arg("fill");
    assert!(text(command.output().unwrap()).contains("count 16 code 2 left 0\nafter 1\n"));
}
