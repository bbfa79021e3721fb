package status

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxListed limits the number of peers that Print lists without everyPeer.
const maxListed = 20

// Print writes the report as text: with everyPeer all peers, otherwise those
// with a problem of their own.
func Print(w io.Writer, r Report, now time.Time, everyPeer bool) error {
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
		p.row("", "%s", p.since(r.OutageSince))
	}
	p.rows("advice", r.Advice)
	p.rows("config", r.Pending)
	if n := r.Node; n != nil {
		p.node(*n, r.LeaseExpires)
	} else {
		p.row("lease", "none yet")
	}
	p.forwarded(r.Forwarded)
	p.row("peers", "%s", count(r))
	p.retained(r.Retained)
	for _, e := range r.Errors {
		p.row("error", "%s %s: %s%s", p.clock(e.Last), e.Part, Printable(e.Text), p.times(e))
	}
	p.peers(r.Peers, everyPeer)
	_, err := io.WriteString(w, p.text.String())
	return err
}

type printer struct {
	now  time.Time
	text strings.Builder
}

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

func (p *printer) node(n Node, expires time.Time) {
	for _, net := range n.Networks {
		p.row("lease", "%s of %s, reached at %s", net.Subnet, net.Network, net.PublicIP)
	}
	if !expires.IsZero() {
		p.row("", "until %s (%s), unless it is renewed", p.clock(expires), expires.Sub(p.now).Round(time.Second))
	}
	p.row("backend", "%s, MTU of pods %d", Printable(n.Backend), n.MTU)
	p.row("underlay", "%s (%s, MTU %d)", n.Underlay.Name, join(n.Underlay.Addrs), n.Underlay.MTU)
	for _, d := range n.Devices {
		if d.Name != n.Underlay.Name {
			identity := d.MAC
			if d.PublicKey != "" {
				identity = "PublicKey=" + d.PublicKey
			}
			if identity != "" {
				identity += ", "
			}
			p.row("device", "%s (index %d, %sMTU %d)", d.Name, d.Index, identity, d.MTU)
		}
	}
	p.row("last pass", "%s, took %s", p.clock(n.LastPass), time.Duration(n.Took).Round(time.Microsecond))
}

// forwarded prints what the daemon forwarded, and why it dropped packets.
func (p *printer) forwarded(f *Forwarded) {
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

// retained prints what the operator needs to know about retained peers.
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
	p.row("", "if these nodes are gone for good, run flanneld accept-withdrawal")
}

func (p *printer) peers(peers []Peer, every bool) {
	listed, more := 0, 0
	for _, peer := range peers {
		switch {
		case every:
		case peer.State == UpToDate || peer.State == Behind && peer.Reason == "": // Report.Problem is the reason
			continue
		case listed == maxListed:
			more++
			continue
		}
		listed++
		text := Printable(peer.Name)
		if len(peer.Subnets) > 0 {
			text += ": " + join(peer.Subnets) + " at " + join(peer.PublicIPs)
		}
		p.row(string(peer.State), "%s", text)
		if peer.Reason != "" {
			p.row("", "%s", Printable(peer.Reason))
		}
		for _, tunnel := range peer.Tunnels {
			p.tunnel(tunnel)
		}
	}
	if more > 0 {
		p.row("", "and %d more; --peers lists all", more)
	}
}

func (p *printer) tunnel(t Tunnel) {
	handshake := "no handshake yet"
	if !t.Handshake.IsZero() {
		handshake = "last handshake " + p.now.Sub(t.Handshake).Round(time.Second).String() + " ago"
	}
	p.row("", "sent to %s, %s, received %s, sent %s", t.Endpoint, handshake, size(t.Received), size(t.Sent))
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

var units = []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}

func (p *printer) times(e Error) string {
	if e.Count == 1 {
		return ""
	}
	return fmt.Sprintf(" (%d times since %s)", e.Count, p.clock(e.First))
}

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
