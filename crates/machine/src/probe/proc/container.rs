//! Which container a process belongs to, from its control group.

/// As many digits of a container's number as its own tools show.
const SHORT: usize = 12;
/// What tools write in front of the number, and whose container it then is.
const PREFIXES: [(&str, &str); 7] = [
    ("docker-", "docker"),
    ("libpod-", "podman"),
    ("cri-containerd-", "containerd"),
    ("crio-", "cri-o"),
    ("nerdctl-", "nerdctl"),
    ("lxc.payload.", "lxc"),
    ("machine-", "machine"),
];

/// The container that the text of `/proc/PID/cgroup` names, as `docker 3f2a1b7c9d10`; `None`
/// outside of containers, and where a container shows its own group as the root.
pub(super) fn container(text: &str) -> Option<String> {
    text.lines().find_map(|line| of_path(line.splitn(3, ':').nth(2)?))
}

/// The innermost part of the path that is a container.
fn of_path(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let kube = parts.iter().any(|part| part.starts_with("kubepods"));
    (0..parts.len()).rev().find_map(|at| {
        let parent = at.checked_sub(1).and_then(|before| parts.get(before));
        of_part(parts[at], parent.copied().unwrap_or_default(), kube)
    })
}

fn of_part(part: &str, parent: &str, kube: bool) -> Option<String> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let known = PREFIXES.iter().find_map(|(start, tool)| Some((*tool, name.strip_prefix(start)?)));
    match known {
        // Other programs of a session are in scopes of such names too.
        Some(("machine", name)) if part.ends_with(".scope") => Some(format!("machine {name}")),
        Some(("lxc", name)) => Some(format!("lxc {name}")),
        Some(("machine", _)) => None,
        // The helper that watches a container is not in it.
        Some((tool, number)) => short(number).map(|number| format!("{tool} {number}")),
        None if parent == "lxc" => Some(format!("lxc {name}")),
        None if ["docker", "libpod_parent"].contains(&parent) => {
            short(name).map(|number| format!("{parent} {number}"))
        }
        None if kube => short(name).map(|number| format!("pod {number}")),
        None => None,
    }
}

fn short(number: &str) -> Option<&str> {
    let whole = number.len() >= 32 && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    if whole { number.get(..SHORT) } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NUMBER: &str = "3f2a1b7c9d10aabbccddeeff00112233445566778899aabbccddeeff00112233";

    #[test]
    fn containers_of_every_tool_are_known() {
        for (text, found) in [
            ("0::/system.slice/docker-N.scope", Some("docker 3f2a1b7c9d10")),
            ("12:memory:/docker/N\n11:cpu:/docker/N", Some("docker 3f2a1b7c9d10")),
            ("0::/machine.slice/libpod-N.scope/container", Some("podman 3f2a1b7c9d10")),
            ("0::/machine.slice/libpod-conmon-N.scope", None),
            (
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podab.slice/cri-containerd-N.scope",
                Some("containerd 3f2a1b7c9d10"),
            ),
            ("5:devices:/kubepods/besteffort/pod1-2/N", Some("pod 3f2a1b7c9d10")),
            ("0::/lxc.payload.web/system.slice/x.service", Some("lxc web")),
            ("3:cpu:/lxc/web", Some("lxc web")),
            ("0::/machine.slice/machine-build.scope/payload", Some("machine build")),
            ("0::/user.slice/user-1000.slice/session-2.scope", None),
            ("0::/", None),
            ("", None),
            ("nonsense", None),
        ] {
            assert_eq!(container(&text.replace('N', NUMBER)).as_deref(), found, "{text}");
        }
    }

    proptest! {
        /// A user may name groups as they like.
        #[test]
        fn any_text_is_survived(text in "(0::|[0-9]:[a-z]*:)?(/(docker|lxc|kubepods|libpod-|é)?[^/\n]{0,70}){0,4}") {
            let _ = container(&text);
        }
    }
}
