package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// column holds the figures for one store, backend and number of peers. Figures
// that were not measured, or that the daemon does not provide, are missing.
type column struct {
	Store   string             `json:"store"` // etcd or kubernetes
	Backend string             `json:"backend"`
	Peers   int                `json:"peers"`
	Figures map[string]float64 `json:"figures"`
}

// row is a line of a table: key is that of a figure, title what is printed. A row without
// a key is a heading. target is what we want to reach with as many peers as the head of the
// column of targets says.
type row struct {
	key, title, target string
	flannel            string // flannel's figure, if known
}

// etcdRows are the rows for etcd.
var etcdRows = []row{
	{"", "start on an empty kernel", "", ""},
	{"first_sync_ms", "until every entry is there, ms", "", ""},
	{"per_peer_us", "the same per peer, µs", "", ""},
	{"ready_ms", "until READY=1, ms", "", ""},
	{"subnet_env_ms", "until subnet.env, ms", "100", ""},
	{"first_cpu_s", "CPU of the daemon, s", "", ""},
	{"first_children_s", "CPU of its children, s", "", ""},
	{"first_rss_mb", "peak RSS, MB", "60", ""},
	{"first_log_bytes", "log, bytes", "", ""},
	{"first_allocs", "allocations", "", ""},
	{"first_alloc_mb", "allocated, MB", "", ""},
	{"", "the kernel alone, written by ip -batch and bridge -batch", "", ""},
	{"kernel_neighbours_ms", "neighbours, ms", "", ""},
	{"kernel_fdb_ms", "FDB, ms", "", ""},
	{"kernel_plain_routes_ms", "plain routes, ms", "", ""},
	{"kernel_nexthops_ms", "nexthop objects, ms", "", ""},
	{"kernel_nexthop_routes_ms", "routes through them, ms", "", ""},
	{"kernel_plain_ms", "all in plain form, ms", "", ""},
	{"kernel_nexthop_ms", "all in nexthop form, ms", "", ""},
	{"ratio_plain", "first sync / plain form", "0.25", ""},
	{"ratio_nexthop", "first sync / nexthop form", "1.1", ""},
	{"", "a pass that compares all entries and changes none", "", ""},
	{"pass_ms", "duration, ms", "60", ""},
	{"pass_cpu_ms", "CPU, ms", "", ""},
	{"", "one more peer, from the put in etcd until the kernel has it", "", ""},
	{"add_p50_ms", "added: p50, ms", "", ""},
	{"add_p99_ms", "added: p99, ms", "", ""},
	{"change_p50_ms", "changed: p50, ms", "", ""},
	{"change_p99_ms", "changed: p99, ms", "", ""},
	{"remove_p50_ms", "removed: p50, ms", "", ""},
	{"remove_p99_ms", "removed: p99, ms", "", ""},
	{"", "for comparison, from the put until a watch of the bench receives it", "", ""},
	{"add_etcd_p99_ms", "added: p99, ms", "", ""},
	{"change_etcd_p99_ms", "changed: p99, ms", "", ""},
	{"remove_etcd_p99_ms", "removed: p99, ms", "", ""},
	{"", "from that event until the kernel has it", "", ""},
	{"add_event_p50_ms", "added: p50, ms", "", ""},
	{"add_event_p99_ms", "added: p99, ms", "2", ""},
	{"change_event_p50_ms", "changed: p50, ms", "", ""},
	{"change_event_p99_ms", "changed: p99, ms", "2", ""},
	{"remove_event_p50_ms", "removed: p50, ms", "", ""},
	{"remove_event_p99_ms", "removed: p99, ms", "2", ""},
	{"change_cpu_ms", "CPU per change, ms", "", ""},
	{"", "restart over a full kernel", "", ""},
	{"restart_same_ms", "nothing changed: until READY=1, ms", "150", ""},
	{"restart_same_writes", "nothing changed: written, by /metrics", "0", ""},
	{"restart_same_seen", "nothing changed: written, by the kernel", "0", ""},
	{"restart_changed_ms", "1 % changed: until synced, ms", "", ""},
	{"restart_changed_writes", "1 % changed: written, by /metrics", "", ""},
	{"restart_changed_seen", "1 % changed: written, by the kernel", "", ""},
}

// compare adds the time per peer, and the ratios of the first sync to the kernel alone.
func (c *column) compare() {
	f := c.Figures
	f["per_peer_us"] = f["first_sync_ms"] * 1000 / float64(c.Peers)
	if plain, ok := f["kernel_plain_ms"]; ok { // missing with --far-peers
		f["ratio_plain"] = f["first_sync_ms"] / plain
	}
	f["ratio_nexthop"] = f["first_sync_ms"] / f["kernel_nexthop_ms"]
}

// printJSON prints all columns as one list.
func printJSON(w io.Writer, columns []column) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(columns)
}

// head is the two-line head of a column that was not measured: targets, or flannel's
// figures.
type head [2]string

// printTable prints the columns of one store. further are the heads of the
// column of targets and, optionally, of that of flannel's figures.
func printTable(w io.Writer, columns []column, rows []row, further ...head) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(title string, cell func(column) string, further []string) {
		fmt.Fprintf(t, "%s\t", title)
		for _, c := range columns {
			fmt.Fprintf(t, "%s\t", cell(c))
		}
		fmt.Fprintf(t, "%s\t\n", strings.Join(further, "\t"))
	}
	widest := 0
	for _, r := range rows {
		widest = max(widest, len(r.title)+2)
	}
	pad := func(s string) string { return fmt.Sprintf("%-*s", widest, s) } // the writer aligns all cells to the right
	var heads [2][]string
	for _, h := range further {
		heads[0], heads[1] = append(heads[0], h[0]), append(heads[1], h[1])
	}
	line(pad(""), func(c column) string { return c.Backend }, heads[0])
	line(pad("peers"), func(c column) string { return fmt.Sprint(c.Peers) }, heads[1])
	for _, r := range rows {
		beside := []string{r.target, r.flannel}[:len(further)] // further has one head or two
		if r.key == "" {
			line(pad(r.title), func(column) string { return "" }, beside)
			continue
		}
		line(pad("  "+r.title), func(c column) string { return number(c.Figures, r.key) }, beside)
	}
	return t.Flush()
}

// number formats a figure with about three significant digits; a dash if it is
// missing.
func number(figures map[string]float64, key string) string {
	v, ok := figures[key]
	switch {
	case !ok:
		return "–"
	case v == 0:
		return "0"
	case v < 1:
		return fmt.Sprintf("%.2g", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
