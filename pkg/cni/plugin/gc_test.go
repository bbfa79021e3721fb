package plugin

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

func TestGC(t *testing.T) {
	n := newNode(t)
	for _, id := range []string{"a", "b", "c"} {
		if s := n.run("ADD", id, "eth0"); s.err != nil {
			t.Fatal(s.err)
		}
	}
	if s := n.run("ADD", "a", "net1"); s.err != nil {
		t.Fatal(s.err)
	}
	n.write("data/flannel1", `{"name":"cbr0","type":"fake-bridge"}`)
	n.write("data/flannel2", `{"name":"cbr0","type":"fake-bridge"}`)
	n.write("data/foreign", `{"name":"other","type":"fake-bridge"}`)
	n.write("data/unreadable", `{`)
	for _, a := range []attachment{{n.path("data"), "a", "eth0", "cbr0", ""}, {n.path("data"), "gone", "eth0", "cbr0", ""}, {n.path("data"), "b", "eth0", "other", ""}} {
		n.write("data/"+filepath.Base(a.tempPath()), `{`)
	}
	n.takeCalls()
	if s := n.run("GC", "", ""); s.err == nil || s.err.Code != types.ErrInvalidNetworkConfig || len(n.saved()) != 11 {
		t.Errorf("GC without a list: %+v, %v", s.err, n.saved())
	}
	valid := []types.GCAttachment{{ContainerID: "a", IfName: "eth0"}, {ContainerID: "c", IfName: "eth9"}, {ContainerID: "flannel1", IfName: "eth1"}}
	n.conf["cni.dev/attachments"] = valid
	n.write("bin/DEL.error", `{"code":11,"msg":"later"}`)
	if s := n.run("GC", "", ""); s.err == nil || len(n.saved()) != 10 {
		t.Errorf("GC with a failing delegate: %+v, %v", s.err, n.saved())
	}
	_ = os.Remove(n.path("bin/DEL.error"))
	n.takeCalls()
	n.conf["cni.dev/valid-attachments"] = valid
	if s := n.run("GC", "", ""); s.err != nil {
		t.Error(s.err)
	}
	if diff := cmp.Diff([]string{".a@eth0" + tempSuffix("cbr0"), ".b@eth0" + tempSuffix("other"), "a", "flannel1", "foreign", "unreadable"}, n.saved()); diff != "" {
		t.Error(diff)
	}
	var calls []string
	for line := range strings.Lines(n.takeCalls()) {
		calls = append(calls, strings.Join(strings.SplitN(line, " ", 4)[:3], " "))
	}
	slices.Sort(calls)
	if diff := cmp.Diff([]string{"DEL a net1", "DEL b eth0", "DEL c eth0", "DEL flannel2 eth0", "GC  ", "VERSION  "}, calls); diff != "" {
		t.Error(diff)
	}
	n.conf["cni.dev/valid-attachments"] = nil // null, as from libcni if the network has no pods
	if s := n.run("GC", "", ""); s.err != nil {
		t.Error(s.err)
	}
	if diff := cmp.Diff([]string{".b@eth0" + tempSuffix("other"), "foreign", "unreadable"}, n.saved()); diff != "" {
		t.Error(diff)
	}
}

// Networks share a data directory. ADDs in one of them succeed while another one has
// GC run, which knows none of their pods.
func TestGCDuringAddOfAnotherNetwork(t *testing.T) {
	n := newNode(t)
	end := make(chan struct{})
	var collecting sync.WaitGroup
	collecting.Go(func() {
		p := &Plugin{OS: "linux", Stderr: io.Discard}
		c := &conf{Name: "other", DataDir: n.path("data"), Valid: validList{}}
		for {
			select {
			case <-end:
				return
			default:
			}
			files, _ := os.ReadDir(c.DataDir) // the first ADD creates it
			for _, f := range files {
				if err := p.collectFile(t.Context(), c, f.Name(), &skel.CmdArgs{}); err != nil {
					t.Errorf("GC of %s: %v", f.Name(), err)
				}
			}
		}
	})
	for i := range 10 {
		if s := n.run("ADD", fmt.Sprintf("pod%d", i), "eth0"); s.err != nil {
			t.Errorf("ADD: %+v", s.err)
		}
	}
	close(end)
	collecting.Wait()
	if names := n.saved(); len(names) != 10 {
		t.Errorf("saved: %v", names)
	}
}
