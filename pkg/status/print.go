package status

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// maxListed bounds how many peers that are not in step a short text names.
const maxListed = 20

// Print writes the report for a person who has a minute; every peer on request, else those that are not in step.
func Print(w io.Writer, r Report, now time.Time, everyPeer bool) error {
	p := printer{now: now}
	p.row("flanneld", "%s, running %s", r.Version, p.since(r.Started))
	state := "in step"
	if !r.Ready {
		state = "NOT in step"
	}
	p.row("network", "%s %s", state, p.since(r.Since))
	p.rows("problem", r.Problem)
	p.rows("outage", r.Outage)
	p.rows("advice", r.Advice)
	p.rows("config", r.Pending)
	if n := r.Node; n != nil {
		p.node(*n)
	} else {
		p.row("lease", "none yet")
	}
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

// rows prints a text of several lines, the name before the first; nothing for no text.
func (p *printer) rows(name, text string) {
	for line := range strings.Lines(text) {
		p.row(name, "%s", Printable(strings.TrimRight(line, "\n")))
		name = ""
	}
}

// clock is a time in the zone of now.
func (p *printer) clock(t time.Time) string { return t.In(p.now.Location()).Format(time.DateTime) }

// since tells when something began, and how long ago.
func (p *printer) since(t time.Time) string {
	return fmt.Sprintf("since %s (%s)", p.clock(t), p.now.Sub(t).Round(time.Second))
}

func (p *printer) node(n Node) {
	for _, net := range n.Networks {
		p.row("lease", "%s of %s, reached at %s", net.Subnet, net.Network, net.PublicIP)
	}
	p.row("backend", "%s, MTU of pods %d", Printable(n.Backend), n.MTU)
	p.row("underlay", "%s (%s, MTU %d)", n.Underlay.Name, join(n.Underlay.Addrs), n.Underlay.MTU)
	for _, d := range n.Devices {
		if d.Name != n.Underlay.Name {
			p.row("device", "%s (index %d, %s, MTU %d)", d.Name, d.Index, d.MAC, d.MTU)
		}
	}
	p.row("last pass", "%s, took %s", p.clock(n.LastPass), time.Duration(n.Took).Round(time.Microsecond))
}

// count is one line on all peers, whatever their number.
func count(r Report) string {
	if !r.PeersKnown {
		return "not known yet"
	}
	n := map[State]int{}
	for _, p := range r.Peers {
		n[p.State]++
	}
	text := fmt.Sprintf("%d in step", n[InStep])
	for _, s := range []struct {
		state State
		name  string
	}{{Behind, "behind"}, {RetainedPeer, "retained"}, {Silent, "yet to describe themselves"}, {LeftOut, "left out"}} {
		if n[s.state] > 0 {
			text += fmt.Sprintf(", %d %s", n[s.state], s.name)
		}
	}
	return text
}

// retained says what the state of that name means for the operator.
func (p *printer) retained(r *Retained) {
	if r == nil {
		return
	}
	if r.Count > 0 {
		p.row("retained", "%d of them the store no longer has (%s); they stay until %s or later", r.Count, Printable(r.Cause), p.clock(r.Until))
	}
	if r.Own {
		p.row("retained", "this node's own lease was withdrawn, too; it is put back if its subnet is free")
	}
	p.row("", "if they are gone for good: flanneld accept-withdrawal")
}

func (p *printer) peers(all []Peer, every bool) {
	listed, more := 0, 0
	for _, one := range all {
		switch {
		case every:
		case one.State == InStep || one.State == Behind && one.Reason == "": // the problem above says why
			continue
		case listed == maxListed:
			more++
			continue
		}
		listed++
		text := Printable(one.Name)
		if len(one.Subnets) > 0 {
			text += ": " + join(one.Subnets) + " at " + join(one.PublicIPs)
		}
		p.row(string(one.State), "%s", text)
		if one.Reason != "" {
			p.row("", "%s", Printable(one.Reason))
		}
	}
	if more > 0 {
		p.row("", "and %d more; --peers lists all", more)
	}
}

func (p *printer) times(e Error) string {
	if e.Count == 1 {
		return ""
	}
	return fmt.Sprintf(" (%d times since %s)", e.Count, p.clock(e.First))
}

func join[T netip.Addr | netip.Prefix](all []T) string {
	var texts []string
	for _, one := range all {
		texts = append(texts, fmt.Sprint(one))
	}
	return strings.Join(texts, ", ")
}

// Printable is one line, and keeps what others wrote from acting on the terminal.
func Printable(s string) string {
	quoted := strconv.Quote(strings.ReplaceAll(s, "\n", "; "))
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(quoted[1 : len(quoted)-1]) // paths of Windows stay as they are
}
