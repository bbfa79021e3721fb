package demo

import (
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"strings"
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

// The picture in README.md shows the steps of the demo as they are now. `make demo-svg` renews it.
func TestPictureShowsTheSteps(t *testing.T) {
	f, err := os.Open("../../../Documentation/demo.svg")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var words []string // an element for each word
	for decoder, inText := xml.NewDecoder(f), false; ; {
		token, err := decoder.Token()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			inText = token.Name.Local == "text"
		case xml.CharData:
			if inText {
				words = append(words, strings.Fields(string(token))...)
			}
		}
	}
	text := strings.Join(words, " ")
	d, err := newShow(Output{Terminal: io.Discard}, lab.Options{Nodes: 3}, `{"Type":"vxlan"}`)
	if err != nil {
		t.Fatal(err)
	}
	d.lab = &lab.Lab{Nodes: []*lab.Node{{}, {}, {}}}
	for i, s := range d.steps() {
		title := fmt.Sprintf("%d. %s", i+1, s.title)
		if _, rest, found := strings.Cut(text, title); found {
			text = rest
		} else {
			t.Errorf("the picture lacks step %q after the former one", title)
		}
	}
}
