// Package demo shows what flannel does, step by step, in a lab. Every step checks
// its own result.
package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// Run runs the demo in a lab and writes it to out. o.Nodes must be at least 2: steps use the
// first two nodes. The last o.Windows nodes are Windows nodes. backend is the Backend of the
// network configuration, a JSON object. With probes it also shows what flanneld's probes find,
// which takes longer than all other steps. The first step that fails ends the demo with its
// error.
func Run(ctx context.Context, out Output, o lab.Options, backend string, probes bool) error {
	d, err := newShow(out, o, backend)
	if err != nil {
		return err
	}
	d.probes = probes
	start := time.Now()
	d.say("%d nodes with pods, connected by flannel (%s), on this machine. Its own network is not changed.", o.Nodes,
		d.backend.Type)
	if d.windows() {
		d.say("%d of them are Windows nodes: the real flanneld.exe and CNI plugins run in Wine, HNS is simulated.",
			o.Windows)
	}
	if d.lab, err = lab.New(ctx, o); err != nil {
		return err
	}
	defer d.lab.Close()
	if err := d.play(ctx, d.steps(), d.logs); err != nil {
		return err
	}
	d.say("\n%s in %.0f seconds. To experiment with such a lab: flannel-lab up", d.bold("All steps succeeded"),
		time.Since(start).Seconds())
	return nil
}

// step is a part of the demo. do fails if the result is not the expected one.
type step struct {
	title string
	do    func(context.Context) error
	slow  bool // waits for flanneld's timers, and not only for events; TestNoStepIsSlow reads it
}

// play does the steps, one after the other on this goroutine. If one fails it writes
// the logs and returns the error of the step.
func (d *show) play(ctx context.Context, steps []step, logs func() string) error {
	for i, s := range steps {
		d.title(i+1, s.title)
		err := s.do(ctx)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return fmt.Errorf("stopped in step %d (%s): %w", i+1, s.title, context.Cause(ctx))
		}
		d.say("%s", logs())
		return fmt.Errorf("step %d (%s) failed: %w", i+1, s.title, err)
	}
	return nil
}

// steps returns the steps for the options of the lab, which must be running. Each is a
// method of show: those of a lab with etcd are in steps.go, the faults in faults.go, and
// those of Kubernetes, of Windows and of probes in kubernetes.go, windows.go and
// outage.go. A step relies on those before it: flanneld runs on all nodes after start, and
// d.pods is set after makePods. loseNode is the last one, as it leaves the last node with
// another subnet and another pod.
func (d *show) steps() []step {
	steps := []step{
		{title: "Nodes: machines on one network, and etcd", do: d.nodes},
		{title: "The network is configured in etcd, once for all nodes", do: d.configure},
		{title: "flanneld starts on every node and acquires a subnet for it", do: d.start},
		{title: "The subnets are leases in etcd: which node has which subnet, and how to reach it", do: d.leases},
	}
	if d.lab.Kube != nil {
		steps = []step{
			{title: "Nodes of a Kubernetes cluster: machines on one network, registered with an API server", do: d.clusterNodes},
			{title: "Our manifest is applied. Its network configuration is a file on every node", do: d.clusterConfig},
			{title: "flanneld starts on every node, as flannel's service account, and uses the podCIDR of the node", do: d.start},
			{title: "How to reach each subnet is in the annotations of its Node", do: d.annotations},
		}
	}
	steps = append(steps, step{title: "flanneld on node1 has configured the kernel to reach the other nodes", do: d.kernel})
	policies := d.windows() && d.backend.Type == "vxlan" // with host-gw, Windows nodes have routes instead
	if policies {
		steps = append(steps, step{title: "flanneld.exe has configured HNS, the part of Windows that connects containers", do: d.hns})
	}
	steps = append(steps, []step{
		{title: "Pods get addresses from the subnet of their node, by the usual CNI plugins", do: d.makePods},
		{title: "Every pod reaches every pod", do: d.pings},
		{title: "Data is transferred between nodes", do: d.transfer},
		{title: "Outside of the cluster, a pod appears with the address of its node (masquerade)", do: d.masquerade},
		{title: "Somebody deletes a route: flanneld restores it", do: d.loseRoute},
	}...)
	if d.backend.Type == "vxlan" {
		steps = append(steps, step{title: "Somebody deletes the whole tunnel device: flanneld restores it", do: d.loseDevice})
	}
	if policies {
		steps = append(steps, step{title: "Somebody removes a policy from HNS: flanneld.exe restores it", do: d.losePolicy})
	}
	if d.probes && d.backend.Type == "vxlan" && d.lab.Nodes[1].Windows == nil { // closePort calls nft on this node
		steps = append(steps, step{title: "A firewall closes the port of the tunnel: the probes of the others find it", do: d.closePort, slow: true})
	}
	steps = append(steps, step{title: "flanneld is killed and started again: no packet is lost", do: d.kill})
	if d.lab.Kube != nil {
		steps = append(steps,
			step{title: "The API server is killed: the network keeps working, and drift is still corrected", do: d.loseAPI},
			step{title: "A node is deleted from the cluster: the others remove it until it is back", do: d.loseNode})
	}
	return steps
}

// show writes the demo and holds the state that steps share. One goroutine uses it.
type show struct {
	w       io.Writer
	colour  bool       // w shows colours
	cast    *recording // an asciicast of what is written, which has no end of its own; nil: none (record.go)
	lab     *lab.Lab   // set by Run; nil in a clusterShow (cluster.go)
	options lab.Options
	config  string     // Backend of the network configuration, a JSON object
	pods    []*lab.Pod // one on each node, in their order; makePods sets it
	probes  bool       // show what probes find
	backend struct {   // the part of config that the steps use
		Type string
		VNI  int // 1 if config has none, as for the backend
	}
}

// newShow returns a show without a lab. It reads what the steps need to know of the
// backend, a JSON object. Colours are only for a terminal, and not if NO_COLOR is set
// (https://no-color.org).
func newShow(out Output, o lab.Options, backend string) (*show, error) {
	d := &show{w: out.Terminal, options: o, config: backend}
	d.backend.VNI = 1
	if err := json.Unmarshal([]byte(backend), &d.backend); err != nil {
		return nil, fmt.Errorf("--backend %s: %w", backend, err)
	}
	if f, ok := d.w.(*os.File); ok && os.Getenv("NO_COLOR") == "" {
		info, err := f.Stat()
		d.colour = err == nil && info.Mode()&os.ModeCharDevice != 0 // a terminal is a character device
	}
	if out.Record != nil {
		var err error
		if d.cast, err = newRecording(out.Record); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// say writes a line. Its colours are removed for a terminal that shows none, but not
// in a recording.
func (d *show) say(format string, a ...any) {
	text := fmt.Sprintf(format+"\n", a...)
	if d.cast != nil {
		d.cast.write(text)
	}
	if !d.colour {
		text = colours.ReplaceAllString(text, "")
	}
	fmt.Fprint(d.w, text)
}

func (d *show) title(n int, text string) { d.say("\n%s", d.bold(fmt.Sprintf("%d. %s", n, text))) }

// result writes the result of a step.
func (d *show) result(format string, a ...any) {
	d.say("   %s %s", d.paint("32", "✔"), fmt.Sprintf(format, a...))
}

func (d *show) bold(s string) string { return d.paint("1", s) }

// paint wraps a text in an SGR escape sequence: 1 is bold, 32 green, 36 cyan.
func (d *show) paint(code, s string) string { return "\x1b[" + code + "m" + s + "\x1b[0m" }

// prompt writes a command as it would be typed in a shell. It does not run it. where
// is the name of the machine.
func (d *show) prompt(where, command string) { d.say("   %s", d.paint("36", where+"# "+command)) }

// run writes a command, runs it in a node or pod, whose name is where, and writes and returns
// its output.
func (d *show) run(ctx context.Context, where string, in machine.Namespaces, command ...string) (string, error) {
	d.prompt(where, strings.Join(command, " "))
	out, err := in.Run(ctx, command...)
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line != "" {
			d.say("     %s", line)
		}
	}
	return out, err
}

// logs returns the last lines of every flanneld's log, for a step that has failed.
func (d *show) logs() string {
	var b strings.Builder
	for _, node := range d.lab.Nodes {
		lines := strings.Split(strings.TrimSpace(node.Log()), "\n")
		fmt.Fprintf(&b, "\nlast lines of flanneld on %s:\n%s\n", node.Name, strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
	return b.String()
}
