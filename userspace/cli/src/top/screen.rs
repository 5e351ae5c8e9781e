// SPDX-License-Identifier: GPL-2.0-only
//! Draws the screen. From 80 columns and 24 rows on everything has its place; what is larger shows more.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Table, Wrap};
use tandem_policies::registry::{self, Kind};
use tandem_view::{Maybe, MoveView, NodeView, Status, percent};

use super::keys::{Overlay, State};
use super::rows::Row;

/// Local shares from which on a thread is well placed, and below which it is badly.
const GOOD: f64 = 0.9;
const BAD: f64 = 0.6;
/// Columns from which on there is room for reasons.
const WIDE: u16 = 100;

const HELP: &str = "\
q        quit                     t        threads, processes, tree
p Space  pause and go on          s        sort by another column
/        filter (Enter, Esc)      r        reverse the order
Up Down PgUp PgDn Home End        select
Enter    why the selected thread is where it is

A filter is a part of a command, a process or thread id, or n and a node's id (n1).

NODE   where a thread is placed; of a process its busy threads by node
PREF   node whose memory it uses most; of a process the one with most of its memory
LOAD   CPUs used             LOCAL  share of accesses that stay on the node
GROUP  threads that share memory: the first one's id (how many)
MOVED  time since the last move
rates inferred: accesses per second are estimates; shares are not";

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let area = frame.area();
    let nodes = state.status.as_ref().map_or(0, |status| status.nodes.len());
    let node_rows = (nodes as u16).min(area.height / 4) + 1;
    let ticker_rows = (area.height / 5).clamp(2, 12);
    let [head, node_area, table, ticker, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(node_rows),
        Constraint::Min(3),
        Constraint::Length(ticker_rows),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, head, state);
    if let Some(status) = &state.status {
        draw_nodes(frame, node_area, status, state.colors);
        draw_ticker(frame, ticker, status);
    }
    draw_table(frame, table, state);
    draw_foot(frame, foot, state);
    match state.overlay {
        Overlay::None => {}
        Overlay::Help => draw_over(frame, "help", HELP.lines().map(Line::from).collect()),
        Overlay::Explanation => draw_over(frame, "why", explanation(state)),
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn header(names: &[&'static str]) -> TableRow<'static> {
    TableRow::new(names.iter().copied().map(Cell::from)).style(Style::new().add_modifier(Modifier::REVERSED))
}

fn right(text: String, width: usize) -> String {
    format!("{text:>width$}")
}

/// How good a local share is.
fn judged(share: Maybe<f64>, colors: bool) -> Style {
    match share.0 {
        _ if !colors => Style::new(),
        None => Style::new(),
        Some(share) if share >= GOOD => Style::new().fg(Color::Green),
        Some(share) if share >= BAD => Style::new().fg(Color::Yellow),
        Some(_) => Style::new().fg(Color::Red),
    }
}

/// The names of the policies that decide.
fn policies(status: &Status) -> String {
    let (threads, pages) = (&status.thread_policy, &status.page_policy);
    if registry::find(Kind::Joint, threads).is_ok() { threads.clone() } else { format!("{threads}+{pages}") }
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(status) = &state.status else {
        let text = state.complaint.as_deref().unwrap_or("waiting for the first state");
        return frame.render_widget(Paragraph::new(text), area);
    };
    let latency = status.latency_ns.0.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0} ns"));
    let mut first = vec![
        Span::styled(format!("tandem {}", status.mode), bold()),
        Span::raw(format!("  {}  local ", policies(status))),
        Span::styled(percent(status.local_share), judged(status.local_share, state.colors)),
        Span::raw(format!("  access {latency}")),
    ];
    if state.paused {
        first.push(Span::styled("  PAUSED", bold()));
    }
    if let Some(complaint) = &state.complaint {
        first.push(Span::styled(format!("  {complaint}"), bold()));
    }
    if !status.sampler.rates.is_empty() {
        first.push(Span::raw(format!("  rates {}", status.sampler.rates)));
    }
    let (sampler, activity) = (&status.sampler, &status.activity);
    let sampling = format!(
        "sampling {:.2} of {} % CPU, {}/{} threads seen",
        sampler.used_percent, sampler.budget_percent, sampler.covered_threads, sampler.busy_threads,
    );
    let (threads, pages) = (activity.thread_moves, activity.moved_pages);
    let (plans, undone) = (activity.plans, activity.undone_plans);
    let second = match status.mode.as_str() {
        "observing" => sampling,
        _ => format!("{sampling}, moved {threads} thr {pages} pages, undone {undone}/{plans}"),
    };
    frame.render_widget(Paragraph::new(vec![Line::from(first), Line::from(second)]), area);
}

fn draw_nodes(frame: &mut Frame<'_>, area: Rect, status: &Status, colors: bool) {
    let names =
        ["NODE", "CPUS", " LOAD", "OTHER", "THR", " FREE MiB", "  MEM MiB", "KNOWN MiB", " ACCESS/s", " LOCAL", ""];
    let widths = [4, 4, 5, 5, 3, 9, 9, 9, 9, 6].map(Constraint::Length);
    let rows = status.nodes.iter().map(|node| node_row(node, area.width, colors));
    let table = Table::new(rows, widths.into_iter().chain([Constraint::Min(0)])).header(header(&names));
    frame.render_widget(table, area);
}

fn node_row(node: &NodeView, width: u16, colors: bool) -> TableRow<'static> {
    let accesses = node.accesses_per_s.0.map_or_else(|| "-".to_owned(), |per_s| format!("{per_s:.1e}"));
    let cells = [
        right(node.id.to_string(), 4),
        right(node.cpus.to_string(), 4),
        right(format!("{:.2}", node.load_cpus), 5),
        right(format!("{:.2}", node.unmanaged_cpus), 5),
        right(node.busy_threads.to_string(), 3),
        right(node.free_mib.to_string(), 9),
        right(node.memory_mib.to_string(), 9),
        right(node.known_mib.to_string(), 9),
        right(accesses, 9),
    ];
    let local = Cell::from(right(percent(node.local_share), 6)).style(judged(node.local_share, colors));
    let bar = Cell::from(bar(node.load_cpus / node.cpus.max(1) as f64, width.saturating_sub(WIDE)));
    TableRow::new(cells.into_iter().map(Cell::from).chain([local, bar]))
}

/// A load from 0 to 1 as a bar, on screens with room for one.
fn bar(load: f64, width: u16) -> String {
    let full = (load.clamp(0.0, 1.0) * f64::from(width)).round() as usize;
    "#".repeat(full) + &".".repeat(usize::from(width) - full)
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, state: &mut State) {
    state.page = usize::from(area.height.saturating_sub(1)).max(1);
    let nodes_width = state.rows.iter().map(|row| row.node.len()).max().unwrap_or(0).clamp(4, 11);
    let names = ["     ID", "NODE", "PREF", " LOAD", " LOCAL", "GROUP", "MOVED", "COMMAND", "WHY"];
    let mut widths = [9, nodes_width as u16, 4, 5, 6, 11, 6, 16].map(Constraint::Length).to_vec();
    widths.push(Constraint::Min(0));
    let rows: Vec<_> = state.rows.iter().map(|row| table_row(row, state.colors)).collect();
    let marked = Style::new().add_modifier(Modifier::REVERSED);
    let table = Table::new(rows, widths).header(header(&names)).row_highlight_style(marked);
    frame.render_stateful_widget(table, area, &mut state.table);
}

fn table_row(row: &Row, colors: bool) -> TableRow<'static> {
    let id = match (row.tid, row.indented) {
        (Some(tid), true) => format!(" {tid:>8}"),
        (Some(tid), false) => right(tid.to_string(), 8),
        (None, _) => right(row.pid.to_string(), 7),
    };
    let moved = row.moved_s.map_or_else(|| "-".to_owned(), age);
    let placed =
        if row.preferred == "-" || row.tid.is_none() || row.preferred == row.node { Style::new() } else { bold() };
    let style = if row.tid.is_none() { bold() } else { Style::new() };
    TableRow::new([
        Cell::from(id),
        Cell::from(row.node.clone()),
        Cell::from(row.preferred.clone()).style(placed),
        Cell::from(right(format!("{:.2}", row.load_cpus), 5)),
        Cell::from(right(percent(row.local_share), 6)).style(judged(row.local_share, colors)),
        Cell::from(row.group.clone()),
        Cell::from(moved),
        Cell::from(row.command.clone()),
        Cell::from(row.why.clone()),
    ])
    .style(style)
}

/// A time in at most five characters.
fn age(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.0}s"),
        s if s < 6_000.0 => format!("{:.0}m", s / 60.0),
        s if s < 360_000.0 => format!("{:.0}h", s / 3_600.0),
        s => format!("{:.0}d", s / 86_400.0),
    }
}

fn draw_ticker(frame: &mut Frame<'_>, area: Rect, status: &Status) {
    let title = Line::styled("last moves", Style::new().add_modifier(Modifier::UNDERLINED));
    let newest = status.moves.iter().rev().take(usize::from(area.height.saturating_sub(1)));
    let lines = newest.map(|one| Line::from(move_in_words(status, one)));
    frame.render_widget(Paragraph::new([title].into_iter().chain(lines).collect::<Vec<_>>()), area);
}

fn move_in_words(status: &Status, one: &MoveView) -> String {
    let age = age(status.time_ns.saturating_sub(one.time_ns) as f64 / 1e9);
    let what = match (one.tid.0, one.pid.0) {
        (Some(tid), _) => format!("thread {tid}"),
        (None, Some(pid)) => format!("{} pages of {pid}", one.pages),
        (None, None) => format!("{} pages", one.pages),
    };
    let from = one.from.0.map_or_else(|| "  ".to_owned(), |from| format!(" {from}"));
    format!("{age:>4} ago  {what:<22}{from} -> {}  {}", one.to, one.reason)
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let text = if state.typing {
        format!("filter: {}_", state.filter)
    } else {
        let reversed = if state.reversed { " reversed" } else { "" };
        let filter = if state.filter.is_empty() { String::new() } else { format!("  filter {}", state.filter) };
        let (what, order) = (state.arrangement.name(), state.order.name());
        format!(
            "{} {what} by {order}{reversed}{filter}  q quit ? help t view s sort / filter p pause",
            state.rows.len()
        )
    };
    frame.render_widget(Paragraph::new(text).style(Style::new().add_modifier(Modifier::REVERSED)), area);
}

fn explanation(state: &State) -> Vec<Line<'static>> {
    let (Some(status), Some(row)) = (&state.status, state.selected()) else { return Vec::new() };
    let process = status.processes.iter().find(|process| process.pid == row.pid);
    let mut said = Vec::new();
    if let Some(thread) = status.threads.iter().find(|thread| Some(thread.tid) == row.tid) {
        said.extend(status.explain(thread));
    }
    said.extend(process.into_iter().flat_map(|process| status.explain_memory(process)));
    said.into_iter().map(Line::from).collect()
}

/// A box over the middle of the screen.
fn draw_over(frame: &mut Frame<'_>, title: &'static str, lines: Vec<Line<'static>>) {
    let screen = frame.area();
    let width = screen.width.min(88);
    let inside = usize::from(width.saturating_sub(2)).max(1);
    let wrapped: usize = lines.iter().map(|line| line.width().div_ceil(inside).max(1)).sum();
    // Words are not broken, so a line may take one row more than it is long.
    let height = (wrapped + lines.len() / 2 + 2).min(usize::from(screen.height)) as u16;
    let area = Rect::new((screen.width - width) / 2, (screen.height - height) / 2, width, height);
    frame.render_widget(Clear, area);
    let text = Paragraph::new(lines).wrap(Wrap { trim: false }).block(Block::bordered().title(title));
    frame.render_widget(text, area);
}

#[cfg(test)]
pub mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tandem_view::{ProcessView, SamplerView, ThreadView};

    use super::*;

    /// Nodes 0 and 1, processes 100 (db) and 200 (web) of two threads each; thread 101 was moved 12 s ago.
    pub fn status() -> Status {
        let node =
            |id| NodeView { id, cpus: 2, load_cpus: 1.5, memory_mib: 2048, free_mib: 1024, ..NodeView::default() };
        let process = |pid, command: &str| ProcessView {
            pid,
            command: command.to_owned(),
            threads: 2,
            known_mib: vec![64, 0],
            busy_threads: vec![1, 1],
            ..ProcessView::default()
        };
        let thread = |pid, tid, node, load_cpus, local| ThreadView {
            tid,
            pid,
            command: if pid == 100 { "db" } else { "web" }.to_owned(),
            node,
            preferred_node: Maybe(Some(0)),
            load_cpus,
            local_share: Maybe(local),
            accesses_per_s: vec![100.0, 0.0],
            allowed_nodes: vec![0, 1],
            ..ThreadView::default()
        };
        let (time_ns, moved_ns, reason) = (20_000_000_000, 8_000_000_000, "its memory is there");
        let moved = ThreadView {
            moved_at_ns: Maybe(Some(moved_ns)),
            moved_why: reason.to_owned(),
            ..thread(100, 101, 1, 1.0, Some(0.2))
        };
        let (tid, from) = (Maybe(Some(101)), Maybe(Some(0)));
        let one = MoveView { time_ns: moved_ns, tid, from, to: 1, reason: reason.to_owned(), ..MoveView::default() };
        Status {
            time_ns,
            mode: "acting".to_owned(),
            thread_policy: "sma".to_owned(),
            page_policy: "tmma".to_owned(),
            local_share: Maybe(Some(0.912)),
            latency_ns: Maybe(Some(123.0)),
            sampler: SamplerView {
                rates: "inferred".to_owned(),
                covered_threads: 3,
                busy_threads: 4,
                ..SamplerView::default()
            },
            nodes: vec![node(0), node(1)],
            processes: vec![process(100, "db"), process(200, "web")],
            threads: vec![
                thread(100, 100, 0, 0.5, Some(0.9)),
                moved,
                thread(200, 201, 0, 0.9, Some(0.95)),
                thread(200, 202, 1, 0.1, None),
            ],
            moves: vec![one],
            ..Status::default()
        }
    }

    fn screen(state: &mut State, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    fn shown(width: u16, height: u16) -> Vec<String> {
        let mut state = State::new(false);
        state.update(Some(status()));
        screen(&mut state, width, height)
    }

    fn assert_has(screen: &[String], expected: &str) {
        assert!(screen.iter().any(|line| line.contains(expected)), "{expected} in\n{}", screen.join("\n"));
    }

    #[test]
    fn everything_has_its_place_at_80_by_24() {
        let screen = shown(80, 24);
        assert_eq!(screen[0], "tandem acting  sma+tmma  local 91.2%  access 123 ns  rates inferred");
        assert!(screen[2].starts_with("NODE CPUS  LOAD OTHER THR"), "{screen:?}");
        assert!(screen[3].starts_with("   0    2  1.50  0.00   0      1024      2048"), "{screen:?}");
        assert!(screen[5].starts_with("     ID   NODE PREF  LOAD  LOCAL GROUP       MOVED"), "{screen:?}");
        assert!(screen[6].starts_with("     101  1    0     1.00  20.0%             12s    db"), "{screen:?}");
        assert_has(&screen, " 12s ago  thread 101             0 -> 1  its memory is there");
        assert!(screen[23].starts_with("4 threads by load  q quit ? help"), "{screen:?}");
        assert!(screen[23].contains("p pause"), "the last key fits: {screen:?}");
    }

    #[test]
    fn a_large_screen_shows_reasons_and_bars() {
        let screen = shown(160, 50);
        assert_has(&screen, "db               its memory is there");
        assert_has(&screen, &format!("     - {}{}", "#".repeat(45), ".".repeat(15)));
        assert_eq!(screen.len(), 50);
    }

    #[test]
    fn a_tiny_screen_does_no_harm() {
        for (width, height) in [(1, 1), (20, 5), (79, 10)] {
            assert_eq!(shown(width, height).len(), usize::from(height));
        }
    }

    #[test]
    fn help_and_explanations_lie_over_the_table() {
        let mut state = State::new(true);
        state.update(Some(status()));
        state.overlay = Overlay::Help;
        let help = screen(&mut state, 80, 24);
        assert_has(&help, "quit");
        assert_has(&help, "MOVED  time since the last move");
        state.table.select(Some(0));
        state.overlay = Overlay::Explanation;
        let why = screen(&mut state, 80, 24);
        assert_has(&why, "Thread 101 (db) of process 100 is on node 1 and uses 1.00 CPUs");
        assert_has(&why, "It was moved 12 s ago");
        assert_has(&why, "64 MiB on node 0");
    }

    #[test]
    fn complaints_and_pauses_are_seen() {
        let mut state = State::new(false);
        assert_has(&screen(&mut state, 80, 24), "waiting for the first state");
        state.update(Some(status()));
        state.paused = true;
        state.complain("the scheduler ended".to_owned());
        assert_has(&screen(&mut state, 80, 24), "PAUSED  the scheduler ended");
    }

    #[test]
    fn ages_fit_their_column() {
        for (seconds, expected) in [(0.4, "0s"), (99.0, "99s"), (120.0, "2m"), (7200.0, "2h"), (864_000.0, "10d")] {
            assert_eq!(age(seconds), expected);
        }
    }
}
