// Package demo shows what flannel does, step by step, in a lab.
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

// Run shows what flannel does with a configuration's Backend, a JSON object. Every step does something, shows it, and
// checks that it came true: the first that does not ends the demo with the reason.
func Run(ctx context.Context, w io.Writer, o lab.Options, backend string) error {
	d, err := newShow(w, o, backend)
	if err != nil {
		return err
	}
	start := time.Now()
	d.say("%d nodes with pods, joined by flannel (%s), on this machine, whose own network is not touched.", o.Nodes, d.backend.Type)
	if d.windows() {
		d.say("Of these, %d are Windows nodes: flanneld.exe and the CNI plugins are the real ones, in Wine; HNS is simulated.", o.Windows)
	}
	if d.lab, err = lab.New(ctx, o); err != nil {
		return err
	}
	defer d.lab.Close()
	for i, s := range d.steps() {
		d.title(i+1, s.title)
		if err := s.do(ctx); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("stopped in step %d (%s): %w", i+1, s.title, context.Cause(ctx))
			}
			return d.failed(i+1, s, err)
		}
	}
	d.say("\n%s in %.0f seconds. To play with such a lab yourself: flannel-lab up", d.bold("All of it came true"), time.Since(start).Seconds())
	return nil
}

type step struct {
	title string
	do    func(context.Context) error
}

func (d *show) steps() []step {
	steps := []step{
		{"Nodes: machines on one network, with etcd beside them", d.nodes},
		{"The network is configured in etcd, once for all", d.configure},
		{"flanneld starts on every node and gets it a subnet", d.start},
		{"The subnets are leases in etcd: who has what, and how to get there", d.leases},
	}
	if d.lab.Kube != nil {
		steps = []step{
			{"Nodes of a Kubernetes cluster: machines on one network, registered with an API server", d.clusterNodes},
			{"Our manifest is applied; its network configuration is a file on every node", d.clusterConfig},
			{"flanneld starts on every node, as flannel's service account, and takes the node's podCIDR", d.start},
			{"How to get to each subnet is in its Node's annotations", d.annotations},
		}
	}
	steps = append(steps, step{"flanneld on node1 has told the kernel how to reach the others", d.kernel})
	if d.windows() {
		steps = append(steps, step{"flanneld.exe has told HNS, which is what Windows has for networks of containers", d.hns})
	}
	steps = append(steps, []step{
		{"Pods get addresses of their node's subnet, by the usual CNI plugins", d.makePods},
		{"Every pod reaches every pod", d.pings},
		{"Bytes flow from node to node", d.transfer},
		{"Outside, a pod is seen with its node's address (masquerade)", d.masquerade},
		{"Somebody deletes a route: flanneld puts it back", d.loseRoute},
	}...)
	if d.backend.Type == "vxlan" {
		steps = append(steps, step{"Somebody deletes the whole tunnel device", d.loseDevice})
	}
	if d.windows() {
		steps = append(steps, step{"Somebody removes a policy of HNS: flanneld.exe puts it back", d.losePolicy})
	}
	steps = append(steps, step{"flanneld is killed and started again: no packet is lost", d.kill})
	if d.lab.Kube != nil {
		steps = append(steps,
			step{"The API server is killed: the network does not notice, and is mended all the same", d.loseAPI},
			step{"A node is deleted from the cluster: the others forget it, until it is back", d.loseNode})
	}
	return steps
}

// show prints for a reader, and keeps what the steps share.
type show struct {
	w       io.Writer
	colour  bool
	lab     *lab.Lab
	options lab.Options
	config  string     // of the backend
	pods    []*lab.Pod // one on each node
	backend struct {
		Type string
		VNI  int
	}
}

func newShow(w io.Writer, o lab.Options, backend string) (*show, error) {
	d := &show{w: w, options: o, config: backend}
	d.backend.VNI = 1
	if err := json.Unmarshal([]byte(backend), &d.backend); err != nil {
		return nil, fmt.Errorf("--backend %s: %w", backend, err)
	}
	if f, ok := w.(*os.File); ok && os.Getenv("NO_COLOR") == "" {
		info, err := f.Stat()
		d.colour = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return d, nil
}

func (d *show) say(format string, a ...any) { fmt.Fprintf(d.w, format+"\n", a...) }

func (d *show) title(n int, text string) { d.say("\n%s", d.bold(fmt.Sprintf("%d. %s", n, text))) }

// result tells what a step found out.
func (d *show) result(format string, a ...any) {
	d.say("   %s %s", d.paint("32", "✔"), fmt.Sprintf(format, a...))
}

func (d *show) bold(s string) string { return d.paint("1", s) }

func (d *show) paint(code, s string) string {
	if !d.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// prompt shows a command as it would be typed.
func (d *show) prompt(where, command string) { d.say("   %s", d.paint("36", where+"# "+command)) }

// run shows a command, runs it, and shows what it wrote.
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

// failed shows the last lines of every flanneld, for who wants to know why.
func (d *show) failed(n int, s step, err error) error {
	for _, node := range d.lab.Nodes {
		lines := strings.Split(strings.TrimSpace(node.Log()), "\n")
		d.say("\nlast lines of flanneld on %s:\n%s", node.Name, strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
	return fmt.Errorf("step %d (%s) did not come true: %w", n, s.title, err)
}
