package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/lab"
)

// A pod's endpoint is checked by the flannel plugin itself: it speaks the newest CNI, whatever its delegate does at CHECK.
func TestWindowsCNI(t *testing.T) {
	t.Parallel()
	l := start(t, lab.Options{Nodes: 2, Windows: 1}, mixedVXLAN)
	w := l.Nodes[1]
	first := pod(t, w, "first") // which has cni-conf write the configuration
	_, err := pod(t, l.Nodes[0], "linux").Reach(t.Context(), first.IP4, long)
	must(t, err)
	var conf map[string]json.RawMessage
	must(t, w.Do(func() error {
		raw, err := os.ReadFile("/etc/cni/net.d/10-flannel.conflist")
		if err != nil {
			return err
		}
		return json.Unmarshal(raw, &conf)
	}))
	must(t, first.Delete(t.Context()))
	conf["cniVersion"] = json.RawMessage(`"1.1.0"`)
	text, err := json.Marshal(conf)
	must(t, err)
	must(t, w.WriteFile("/etc/cni/net.d/05-newer.conflist", string(text)))

	p := pod(t, w, "pod1")
	must(t, p.Check(t.Context()))
	mine := podEndpoint(t, w, "lab-pod1_flannel.4096")
	refused := func(what, says string) {
		t.Helper()
		if err := p.Check(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: CHECK says %v, want %s", what, err, says)
		}
	}
	_, err = w.Windows.Call("HcnDeleteEndpoint", mine.ID)
	must(t, err)
	refused("without its endpoint", "lab-pod1_flannel.4096")
	must(t, p.Delete(t.Context()))

	p = pod(t, w, "pod2")
	env, err := w.SubnetEnv()
	must(t, err)
	var lines []string
	for k, v := range env {
		if k == "FLANNEL_SUBNET" {
			v = "10.5.250.1/24"
		}
		lines = append(lines, k+"="+v)
	}
	must(t, w.Kill())
	must(t, w.WriteFile("/run/flannel/subnet.env", strings.Join(lines, "\n")+"\n"))
	refused("with another subnet", "10.5.250.0/24")
	must(t, p.Delete(t.Context()))
	must(t, w.Do(func() error {
		if files, err := os.ReadDir("/var/lib/cni/flannel"); err != nil || len(files) > 0 {
			t.Errorf("saved: %v, %v", files, err)
		}
		return nil
	}))
}

// podEndpoint finds an endpoint of HNS by its name.
func podEndpoint(t *testing.T, w *lab.Node, name string) (e struct{ ID, Name string }) {
	t.Helper()
	r, err := w.Windows.Report()
	must(t, err)
	for _, raw := range r.Endpoints {
		must(t, json.Unmarshal(raw, &e))
		if e.Name == name {
			return e
		}
	}
	t.Fatalf("HNS has no endpoint %s: %s", name, r.Endpoints)
	return e
}
