package plugin

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/nettest"
	"flannel/internal/test/nstest"
)

// The program is started for every pod, so it must stay small. The limits are far
// above what it needs, and far below what a Kubernetes client or net/http adds.
func TestSmall(t *testing.T) {
	n := newNode(t)
	// The delegate asks how much its parent, the plugin, needs. The resource usage of a child would tell what this test
	// needs, too, because Linux counts the time between fork and exec.
	program, status := n.path("bin/fake-sh"), n.path("status")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ncat /proc/$PPID/status >"+status+"\ncat >/dev/null\necho '{\"cniVersion\":\"1.0.0\"}'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.conf["delegate"] = map[string]any{"type": "fake-sh"}
	for _, name := range []string{"cni/flannel", "cni-former/flannel"} {
		n.conf["cniVersion"] = "0.4.0"
		cmd := n.command("ADD", "pod1", "eth0")
		cmd.Path = nettest.Tool(t, name)
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
		took := time.Since(start)
		text, err := os.ReadFile(status)
		if err != nil {
			t.Fatal(err)
		}
		_, peak, _ := strings.Cut(string(text), "\nVmHWM:")
		var memory int // KiB
		if _, err := fmt.Sscan(peak, &memory); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		info, err := os.Stat(cmd.Path)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes; ADD with a shell as delegate: %v, CPU %v, %d KiB", name, info.Size(), took, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime(), memory)
		if name == "cni/flannel" && (info.Size() > 8e6 || memory > 32<<10) {
			t.Errorf("%s: file of %d bytes, memory %d KiB, want less", name, info.Size(), memory)
		}
	}
}

// rounds is how often TestFigures measures; use FLANNEL_FIGURES=100 for the figures
// in Documentation/scale.md.
const rounds = 2

// TestFigures measures ADD with this plugin, with the upstream one, and with the
// delegate alone. It fails only if one of them fails.
func TestFigures(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := newMachine(t, envText)
		m.makeNetns("pod1")
		defer m.deleteNetns("pod1")
		const flannel = `{"name":"cbr0","cniVersion":"0.4.0","plugins":[{"type":"flannel","subnetFile":"DIR/subnet.env","dataDir":"DIR/saved",
			"ipam":{"dataDir":"DIR/leases"},"delegate":{"hairpinMode":true,"isDefaultGateway":true}}]}`
		const bridge = `{"name":"cbr0","cniVersion":"0.4.0","plugins":[{"type":"bridge","mtu":1450,"isGateway":true,"hairpinMode":true,"isDefaultGateway":true,
			"ipam":{"type":"host-local","dataDir":"DIR/leases","ranges":[[{"subnet":"10.5.72.0/24"}]],"routes":[{"dst":"10.5.0.0/16"}]}}]}`
		kinds := []struct {
			name, list string
			upstream   bool
		}{{"bridge alone", bridge, false}, {"this plugin", flannel, false}, {"upstream", flannel, true}}
		n, _ := strconv.Atoi(os.Getenv("FLANNEL_FIGURES"))
		took := map[string][]time.Duration{}
		for range cmp.Or(n, rounds) {
			for _, k := range kinds {
				m.useUpstream(k.upstream)
				m.configure(k.list, "")
				rt := m.runtime("pod1")
				start := time.Now()
				_, err := m.add(t.Context(), rt)
				m.must(err)
				took[k.name] = append(took[k.name], time.Since(start))
				m.must(m.cni.DelNetworkList(t.Context(), m.list, rt))
			}
		}
		for _, k := range kinds {
			times := took[k.name]
			slices.Sort(times)
			fastest, median := times[0].Round(100*time.Microsecond), times[len(times)/2].Round(100*time.Microsecond)
			t.Logf("ADD %-16s fastest %v, median %v", k.name, fastest, median)
		}
	})
}

// The program contains no client of a server, and no large library.
func TestNoClients(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "flannel/cmd/flannel")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"net/http", "k8s.io/", "go.etcd.io/", "google.golang.org/", "hcsshim", "vishvananda/netlink"} {
		if strings.Contains(string(out), "\n"+name) || strings.Contains(string(out), "/"+name+"\n") {
			t.Errorf("the plugin imports %s", name)
		}
	}
}
