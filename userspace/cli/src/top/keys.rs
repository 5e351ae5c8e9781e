// SPDX-License-Identifier: GPL-2.0-only
//! What is shown, and what keys do to it.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;
use tandem_view::Status;

use super::rows::{Arrangement, Order, Row, rows};

/// What is laid over the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlay {
    None,
    Help,
    /// Why the selected row is as it is.
    Explanation,
}

/// What follows from a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    Stay,
    Quit,
}

/// Everything the screen shows.
pub struct State {
    pub status: Option<Status>,
    /// Why there is no newer state.
    pub complaint: Option<String>,
    pub arrangement: Arrangement,
    pub order: Order,
    pub reversed: bool,
    pub filter: String,
    /// The filter is being typed.
    pub typing: bool,
    pub overlay: Overlay,
    pub paused: bool,
    pub colors: bool,
    pub rows: Vec<Row>,
    pub table: TableState,
    /// Rows that fit on a page; the screen says.
    pub page: usize,
}

impl State {
    /// Nothing seen yet.
    pub fn new(colors: bool) -> Self {
        Self {
            status: None,
            complaint: None,
            arrangement: Arrangement::Threads,
            order: Order::Load,
            reversed: false,
            filter: String::new(),
            typing: false,
            overlay: Overlay::None,
            paused: false,
            colors,
            rows: Vec::new(),
            table: TableState::default(),
            page: 1,
        }
    }

    /// Takes a newer state; `None` if there is none yet.
    pub fn update(&mut self, status: Option<Status>) {
        self.complaint = status.is_none().then(|| "waiting for the end of the first interval".to_owned());
        if status.is_some() {
            self.status = status;
        }
        self.arrange();
    }

    /// Notes why there is no newer state.
    pub fn complain(&mut self, why: String) {
        self.complaint = Some(why);
    }

    /// The row that is selected.
    pub fn selected(&self) -> Option<&Row> {
        self.rows.get(self.table.selected()?)
    }

    /// Makes the rows anew; who was selected stays so wherever it goes.
    fn arrange(&mut self) {
        let selected = self.selected().map(|row| (row.pid, row.tid));
        let Some(status) = &self.status else { return };
        self.rows = rows(status, self.arrangement, self.order, self.reversed, &self.filter);
        let at = selected.and_then(|id| self.rows.iter().position(|row| (row.pid, row.tid) == id));
        let last = self.rows.len().checked_sub(1);
        self.table.select(at.or_else(|| Some(self.table.selected()?.min(last?))));
    }

    fn select(&mut self, by: isize) {
        let Some(last) = self.rows.len().checked_sub(1) else { return };
        let at = match self.table.selected() {
            Some(at) => at.saturating_add_signed(by).min(last),
            None => 0,
        };
        self.table.select(Some(at));
    }

    /// Does what a key stands for.
    pub fn press(&mut self, key: KeyEvent) -> Reaction {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Reaction::Quit;
        }
        if self.typing {
            self.type_filter(key.code);
            return Reaction::Stay;
        }
        match key.code {
            KeyCode::Char('q') if self.overlay == Overlay::None => return Reaction::Quit,
            KeyCode::Char('q') | KeyCode::Esc if self.overlay != Overlay::None => self.overlay = Overlay::None,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('?' | 'h') => self.overlay = Overlay::Help,
            KeyCode::Enter | KeyCode::Char('e') if self.selected().is_some() => self.overlay = Overlay::Explanation,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('t') => self.arrangement = self.arrangement.next(),
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-(self.page as isize)),
            KeyCode::PageDown => self.select(self.page as isize),
            KeyCode::Home => self.table.select(Some(0)),
            KeyCode::End => self.table.select(Some(usize::MAX)),
            _ => {}
        }
        self.arrange();
        Reaction::Stay
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(typed) => self.filter.push(typed),
            _ => {}
        }
        self.arrange();
    }
}

#[cfg(test)]
mod tests {
    use super::super::screen::tests::status;
    use super::*;

    fn shown() -> State {
        let mut state = State::new(false);
        state.update(Some(status()));
        state
    }

    fn press(state: &mut State, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                'v' => KeyCode::Down,
                other => KeyCode::Char(other),
            };
            assert_eq!(state.press(KeyEvent::from(code)), Reaction::Stay, "{key:?}");
        }
    }

    #[test]
    fn q_closes_what_lies_above_and_then_quits() {
        let mut state = shown();
        press(&mut state, "?q");
        assert_eq!(state.overlay, Overlay::None);
        assert_eq!(state.press(KeyEvent::from(KeyCode::Char('q'))), Reaction::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        press(&mut state, "/");
        assert_eq!(state.press(interrupt), Reaction::Quit, "also while typing");
    }

    #[test]
    fn a_filter_is_typed_and_taken_back() {
        let mut state = shown();
        press(&mut state, "/dbq\n");
        assert_eq!((state.filter.as_str(), state.typing, state.rows.len()), ("dbq", false, 0));
        press(&mut state, "\x1b");
        assert_eq!((state.filter.as_str(), state.rows.len()), ("", 4));
    }

    #[test]
    fn the_selection_follows_its_thread() {
        let mut state = shown();
        press(&mut state, "vv");
        let tid = state.selected().unwrap().tid;
        press(&mut state, "ssss");
        assert_eq!(state.selected().unwrap().tid, tid);
        press(&mut state, "r");
        assert_eq!(state.selected().unwrap().tid, tid);
        let mut fewer = status();
        fewer.threads.truncate(1);
        state.update(Some(fewer));
        assert_eq!(state.selected().unwrap().tid, Some(100), "who is gone is not selected");
    }

    #[test]
    fn the_selection_stays_within_the_rows() {
        let mut state = shown();
        for key in [KeyCode::End, KeyCode::Down, KeyCode::PageDown] {
            state.press(KeyEvent::from(key));
        }
        assert_eq!(state.table.selected(), Some(3));
        for key in [KeyCode::Home, KeyCode::Up] {
            state.press(KeyEvent::from(key));
        }
        assert_eq!(state.table.selected(), Some(0));
    }
}
