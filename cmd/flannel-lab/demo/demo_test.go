package demo

import (
	"io"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// No step of the demo waits for a timer of flanneld, unless it is asked for: the pages say how long the demo takes.
func TestNoStepIsSlow(t *testing.T) {
	for _, probes := range []bool{false, true} {
		for _, kube := range []*lab.Kube{nil, {}} {
			d, err := newShow(Output{Terminal: io.Discard}, lab.Options{Nodes: 3}, `{"Type":"vxlan"}`)
			if err != nil {
				t.Fatal(err)
			}
			d.probes, d.lab = probes, &lab.Lab{Nodes: []*lab.Node{{}, {}, {}}, Kube: kube}
			slow := 0
			for _, s := range d.steps() {
				if s.slow {
					slow++
				}
			}
			if want := map[bool]int{true: 1}[probes]; slow != want {
				t.Errorf("probes: %v: %d slow steps, want %d", probes, slow, want)
			}
		}
	}
}
