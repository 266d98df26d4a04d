//! Which processes are shown: by user, number or name.

use crate::command::monitor::record::MonitorProcess;

/// A key while the filter is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilterKey {
    /// Begins to type.
    Begin,
    Letter(char),
    Back,
    /// Keeps what was typed.
    Keep,
    /// Shows all again.
    Clear,
}

/// Longer ones filter nothing more.
const LONGEST: usize = 60;

/// What was typed: a word that a user, a number or a name has, or one of `user:`, `pid:` and
/// `name:` with a word behind it.
#[derive(Debug, Clone, Default)]
pub(super) struct ProcessFilter {
    pub(super) text: String,
    pub(super) typing: bool,
}

impl ProcessFilter {
    pub(super) fn is_set(&self) -> bool {
        self.typing || !self.text.is_empty()
    }

    pub(super) fn press(&mut self, key: FilterKey) {
        match key {
            FilterKey::Begin => self.typing = true,
            FilterKey::Letter(letter) if self.text.len() < LONGEST && !letter.is_control() => {
                self.text.push(letter);
            }
            FilterKey::Letter(_) => {}
            FilterKey::Back => drop(self.text.pop()),
            FilterKey::Keep => self.typing = false,
            FilterKey::Clear => *self = ProcessFilter::default(),
        }
    }

    pub(super) fn passes(&self, process: &MonitorProcess) -> bool {
        let wanted = self.text.trim().to_lowercase();
        if wanted.is_empty() {
            return true;
        }
        let has = |text: &Option<String>, word: &str| {
            text.as_ref().is_some_and(|text| text.to_lowercase().contains(word))
        };
        let user =
            |word: &str| process.user.as_ref().is_some_and(|user| user.to_lowercase() == word);
        let pid = |word: &str| process.pid.to_string() == word;
        let name = |word: &str| has(&process.name, word) || has(&process.command, word);
        match wanted.split_once(':').map(|(kind, word)| (kind, word.trim())) {
            // While nothing stands behind it yet, all are shown.
            Some(("user" | "pid" | "name", "")) => true,
            Some(("user", word)) => user(word),
            Some(("pid", word)) => pid(word),
            Some(("name", word)) => name(word),
            _ => user(&wanted) || pid(&wanted) || name(&wanted) || has(&process.container, &wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_a_number_and_a_name_are_found() {
        let process = MonitorProcess {
            pid: 4711,
            name: Some("python3".to_string()),
            user: Some("ada".to_string()),
            command: Some("python3 Train.py".to_string()),
            container: Some("docker 3f2a1b7c9d10".to_string()),
            ..MonitorProcess::default()
        };
        let passes =
            |text: &str| ProcessFilter { text: text.into(), typing: false }.passes(&process);
        let found = [
            "",
            "ada",
            "4711",
            "PYTHON",
            "train",
            "3f2a",
            "user:ada",
            "pid:4711",
            "user:",
            "name: train",
        ];
        for text in found {
            assert!(passes(text), "{text}");
        }
        for text in ["ad", "471", "user:root", "pid:471", "name:ada", "user:python3", "other"] {
            assert!(!passes(text), "{text}");
        }
    }

    #[test]
    fn what_is_typed_can_be_taken_back() {
        let mut filter = ProcessFilter::default();
        filter.press(FilterKey::Begin);
        for letter in ['a', '\x1b', 'b'] {
            filter.press(FilterKey::Letter(letter));
        }
        assert_eq!((filter.text.as_str(), filter.typing), ("ab", true));
        filter.press(FilterKey::Back);
        filter.press(FilterKey::Keep);
        assert!(filter.is_set() && !filter.typing && filter.text == "a");
        filter.press(FilterKey::Clear);
        assert!(!filter.is_set());
    }
}
