package status

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"flannel/pkg/dataplane"
)

// maxListed limits the number of peers that Print lists without EveryPeer.
const maxListed = 20

// PrintOptions say what Print adds to the present state. The zero value adds nothing.
type PrintOptions struct {
	EveryPeer bool // a table of all peers, instead of a list of those with a problem of their own
	Wide      bool // more columns in that table
	History   bool // errors of the past, which may be over
}

// Print writes the report as text, for flanneld status and status --watch. now is the time
// of the report; times are shown in its time zone.
func Print(w io.Writer, r Report, now time.Time, o PrintOptions) error {
	p := printer{now: now}
	p.row("flanneld", "%s, running %s", r.Version, p.since(r.Started))
	state := "up to date"
	if !r.Ready {
		state = "NOT up to date"
	}
	p.row("network", "%s %s", state, p.since(r.Since))
	p.rows("problem", r.Problem)
	p.rows("outage", r.Outage)
	if !r.OutageSince.IsZero() {
		p.row("", "%s; flanneld retries, and the network stays as it is", p.since(r.OutageSince))
	}
	p.rows("advice", r.Advice)
	p.rows("conflict", r.Conflict)
	p.rows("config", r.Pending)
	if len(r.LostPods) > 0 {
		p.rows("pods", fmt.Sprintf("%d have lost their network: delete them, and restart kube-proxy\n%s", len(r.LostPods), strings.Join(r.LostPods, "\n")))
	}
	p.store(r)
	if n := r.Node; n != nil {
		p.node(*n, r.LeaseExpires)
	} else {
		p.row("lease", "none yet")
	}
	p.forwarded(r.Forwarded)
	p.guard(r.Guard)
	p.row("peers", "%s", count(r))
	p.probes(r.Peers)
	p.retained(r.Retained)
	p.history(r.Errors, o.History)
	if o.EveryPeer {
		p.table(r.Peers, o.Wide)
	} else {
		p.peers(r.Peers)
	}
	_, err := io.WriteString(w, p.text.String())
	return err
}

// printer makes the text, one row of a name and a value after the other. printreach.go has its methods for what probes
// found.
type printer struct {
	now  time.Time
	text strings.Builder
}

// row prints a row; the name is "" if the row belongs to the one above it. Arguments that
// come from other nodes must be Printable.
func (p *printer) row(name, format string, args ...any) {
	fmt.Fprintf(&p.text, "%-10s%s\n", name, fmt.Sprintf(format, args...))
}

// rows prints each line of a text as a row, the name only before the first. It
// prints nothing if the text is empty.
func (p *printer) rows(name, text string) {
	for line := range strings.Lines(text) {
		p.row(name, "%s", Printable(strings.TrimRight(line, "\n")))
		name = ""
	}
}

// clock formats a time in the time zone of now.
func (p *printer) clock(t time.Time) string { return t.In(p.now.Location()).Format(time.DateTime) }

// since formats a time, with how long ago it was.
func (p *printer) since(t time.Time) string {
	return fmt.Sprintf("since %s (%s)", p.clock(t), p.now.Sub(t).Round(time.Second))
}

// store prints where the leases are.
func (p *printer) store(r Report) {
	switch {
	case r.Settings == nil:
		p.rows("store", r.Store)
	case r.Settings.Etcd != nil:
		p.row("store", "etcd, %s, prefix %s", strings.Join(r.Settings.Etcd.Endpoints, ", "), r.Settings.Etcd.Prefix)
	case r.Settings.Kube != nil:
		p.row("store", "Kubernetes, %s", cmp.Or(r.Settings.Kube.APIURL, r.Settings.Kube.Kubeconfig, "as the pod's service account"))
	}
}

// node prints the lease, and what of this node the network is made of.
func (p *printer) node(n Node, expires time.Time) {
	for _, net := range n.Networks {
		p.row("lease", "%s of %s, reached at %s", net.Subnet, net.Network, net.PublicIP)
	}
	if !expires.IsZero() {
		p.row("", "until %s (%s), unless flanneld renews it", p.clock(expires), expires.Sub(p.now).Round(time.Second))
	}
	p.row("backend", "%s, MTU of pods %d", Printable(n.Backend), n.MTU)
	p.row("underlay", "%s (%s, MTU %d)", n.Underlay.Name, join(n.Underlay.Addrs), n.Underlay.MTU)
	if n.Underlay.AtStart != "" {
		p.row("", "a start of flanneld would choose %s", Printable(n.Underlay.AtStart))
	}
	for _, d := range n.Devices {
		if d.Name == n.Underlay.Name {
			continue // it has a row already
		}
		identity := "" // by which peers know the device
		switch {
		case d.PublicKey != "":
			identity = "PublicKey=" + d.PublicKey + ", "
		case d.MAC != "":
			identity = d.MAC + ", "
		}
		p.row("device", "%s (index %d, %sMTU %d)", d.Name, d.Index, identity, d.MTU)
	}
	writer := "iptables"
	if n.NFTables {
		writer = "nftables"
	}
	p.row("firewall", "%s", writer)
	p.row("last pass", "%s, took %s", p.clock(n.LastPass), time.Duration(n.Took).Round(time.Microsecond))
}

// forwarded prints what the daemon forwarded, and why it dropped packets.
func (p *printer) forwarded(f *dataplane.Forwarded) {
	if f == nil {
		return
	}
	text := fmt.Sprintf("%d packets (%d bytes) sent, %d (%d bytes) received", f.Sent.Packets, f.Sent.Bytes, f.Received.Packets, f.Received.Bytes)
	for _, reason := range slices.Sorted(maps.Keys(f.Dropped)) {
		if n := f.Dropped[reason]; n > 0 {
			text += fmt.Sprintf(", %d dropped (%s)", n, Printable(reason))
		}
	}
	p.row("forwarded", "%s", text)
}

// guard prints what guards the pod network, and what it has found.
func (p *printer) guard(g *dataplane.GuardReport) {
	if g == nil {
		return
	}
	mode := "audit"
	if g.Enforce {
		mode = "enforce"
	}
	if g.Waiting != "" { // why a guard that shall enforce only counts as yet
		mode = "audit, but " + Printable(g.Waiting)
	}
	var all []string
	if g.Problem != "" {
		all = append(all, "does not work as it should: "+Printable(g.Problem))
	}
	dropped, counted := Found(g)
	if dropped != "" {
		all = append(all, "packets that were dropped: "+dropped)
	}
	if counted != "" {
		all = append(all, "packets that were counted, and not dropped: "+counted)
	}
	if len(all) == 0 {
		all = append(all, "no forged packets")
	}
	if dropped+counted != "" && g.OfPeer != "" && g.Waiting == "" { // Waiting says the same
		all = append(all, "a node may have sent the last one: "+Printable(g.OfPeer))
	}
	p.row("guard", "%s: %s", mode, strings.Join(all, "; "))
}

// count returns the number of peers in each state.
func count(r Report) string {
	if !r.PeersKnown {
		return "not known yet"
	}
	n := map[State]int{}
	for _, p := range r.Peers {
		n[p.State]++
	}
	text := fmt.Sprintf("%d %s", n[UpToDate], UpToDate)
	for _, state := range []State{Behind, RetainedPeer, Pending, Rejected} {
		if n[state] > 0 {
			text += fmt.Sprintf(", %d %s", n[state], state)
		}
	}
	return text
}

// retained prints what the operator needs to know about retained peers. Without any, there is no
// advice to accept the withdrawal: that would only end this node's flanneld.
func (p *printer) retained(r *Retained) {
	if r == nil {
		return
	}
	if r.Count > 0 {
		p.row("retained", "the store has lost the leases of %d peers (%s); they are used until %s or later",
			r.Count, Printable(r.Cause), p.clock(r.Until))
	}
	if r.Own {
		p.row("retained", "this node's lease was withdrawn, too; it will be restored if its subnet is free")
	}
	if r.Count > 0 {
		ends := ""
		if r.Own {
			ends = " (this node's flanneld ends then)"
		}
		p.row("", "if these nodes are gone for good, run flanneld accept-withdrawal%s", ends)
	}
}

// peers lists the peers with a problem of their own: the state or the probes say so. A peer
// that is behind without a reason is so because the whole pass failed, which Report.Problem
// says.
func (p *printer) peers(peers []Peer) {
	listed, more := 0, 0
	for _, peer := range peers {
		badState := peer.State != UpToDate && (peer.State != Behind || peer.Reason != "")
		if !badState && !peer.alarming() {
			continue
		}
		if listed == maxListed {
			more++
			continue
		}
		listed++
		text := Printable(peer.Name)
		if len(peer.Subnets) > 0 {
			text += ": " + join(peer.Subnets) + " at " + join(peer.PublicIPs)
		}
		if peer.State != UpToDate {
			p.row(string(peer.State), "%s", text)
		}
		if peer.alarming() {
			p.row("probes", "%s %s %s", text, alarms[peer.Reach.State], p.since(peer.Reach.Since))
			p.row("", "last answer of %s: %s", peer.Reach.Target, p.ago(peer.Reach.Answered))
		}
		p.rows("", Printable(peer.Reason))
	}
	if more > 0 {
		p.row("", "and %d more; --peers lists all", more)
	}
}

// table prints a line for each peer. What tunnels know of their peers is shown if there
// is any, and with wide in any case and with further columns. In Kubernetes, a peer's
// name is that of its Node.
func (p *printer) table(peers []Peer, wide bool) {
	head := []string{"PEER", "STATE", "REACH", "SUBNET", "ADDRESS"}
	if wide {
		head = append(head, "VIA", "ANSWERED", "ENDPOINT")
	}
	tunnels := wide || slices.ContainsFunc(peers, func(p Peer) bool { return len(p.Tunnels) > 0 })
	if tunnels {
		head = append(head, "HANDSHAKE", "RECEIVED", "SENT")
	}
	rows := [][]string{append(head, "REASON")}
	for _, peer := range peers {
		row := []string{peer.Name, string(peer.State), p.reach(peer.Reach), join(peer.Subnets), join(peer.PublicIPs)}
		endpoint, traffic := p.tunnels(peer.Tunnels)
		if wide {
			row = append(append(row, p.answered(peer.Reach)...), endpoint)
		}
		if tunnels {
			row = append(row, traffic...)
		}
		rows = append(rows, append(row, peer.Reason))
	}
	p.text.WriteString("\n" + Table(rows))
}

// Table aligns the cells of rows in columns, and makes them Printable. An empty cell is a dash, except in the last column.
func Table(rows [][]string) string {
	var aligned, text strings.Builder
	w := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		last := len(row) - 1
		for _, cell := range row[:last] {
			fmt.Fprintf(w, "%s\t", cmp.Or(Printable(cell), "-"))
		}
		fmt.Fprintln(w, Printable(row[last]))
	}
	_ = w.Flush() // a strings.Builder does not fail
	for line := range strings.Lines(aligned.String()) {
		text.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return text.String()
}

// tunnels returns the cells of a peer's tunnels: where they send; the last handshake, and
// the bytes received and sent.
func (p *printer) tunnels(tunnels []dataplane.TunnelReport) (endpoint string, traffic []string) {
	var cells [4][]string
	for _, t := range tunnels {
		handshake := "none yet"
		if !t.Handshake.IsZero() {
			handshake = p.now.Sub(t.Handshake).Round(time.Second).String() + " ago"
		}
		for i, text := range []string{t.Endpoint.String(), handshake, size(t.Received), size(t.Sent)} {
			cells[i] = append(cells[i], text)
		}
	}
	for _, cell := range cells[1:] {
		traffic = append(traffic, strings.Join(cell, ", "))
	}
	return strings.Join(cells[0], ", "), traffic
}

// history prints the errors of passes, or how many there are.
func (p *printer) history(errors []Error, all bool) {
	if len(errors) == 0 {
		return
	}
	if !all {
		p.row("history", "%d different errors of passes, the last one at %s; --history lists them", len(errors), p.clock(errors[len(errors)-1].Last))
		return
	}
	for _, e := range errors {
		p.row("history", "%s %s: %s%s", p.clock(e.Last), e.Part, Printable(e.Text), p.times(e))
	}
}

// size formats a number of bytes.
func size(bytes int64) string {
	value, unit := float64(bytes), 0
	for value >= 1024 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	return strconv.FormatFloat(value, 'f', min(unit, 1), 64) + " " + units[unit]
}

// units are those of numbers of bytes, each 1024 of the one before.
var units = []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}

// times says how often the error occurred if it did more than once.
func (p *printer) times(e Error) string {
	if e.Count == 1 {
		return ""
	}
	return fmt.Sprintf(" (%d times since %s)", e.Count, p.clock(e.First))
}

// join lists addresses or networks.
func join[T netip.Addr | netip.Prefix](values []T) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, fmt.Sprint(v))
	}
	return strings.Join(texts, ", ")
}

// Printable makes one line of a text, and escapes control characters: the text
// may come from other nodes.
func Printable(s string) string {
	quoted := strconv.Quote(strings.ReplaceAll(s, "\n", "; "))
	// Without the replacement, paths of Windows would have two backslashes.
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(quoted[1 : len(quoted)-1])
}
