package windows

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/dataplane"
	"flannel/pkg/windows/hns"
)

// watchPods begins anew with a directory of results, which it returns.
func (w *windows) watchPods() (dir string) {
	w.opts.PodResults = filepath.Join(w.opts.StateDir, "results")
	if err := os.MkdirAll(w.opts.PodResults, 0o700); err != nil {
		w.t.Fatal(err)
	}
	w.restart()
	w.bring(time.Minute)
	return w.opts.PodResults
}

// runPod creates a pod as the runtime does, and returns its namespace and the file with its result.
func (w *windows) runPod(network, name string, n byte) (namespace, file string) {
	namespace = w.pod(network, name+"_"+network, n)
	raw, err := json.Marshal(map[string]any{"kind": "cniCacheV1", "containerId": name, "networkName": network, "netns": namespace,
		"cniArgs": [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name}}})
	if err != nil {
		w.t.Fatal(err)
	}
	file = filepath.Join(w.opts.PodResults, network+"-"+name+"-eth0")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		w.t.Fatal(err)
	}
	return namespace, file
}

func (w *windows) wantLost(when string, want ...string) {
	w.t.Helper()
	if got := w.PodsWithoutEndpoint(); !slices.Equal(got, want) {
		w.t.Errorf("%s: pods without endpoint: %q, want %q", when, got, want)
	}
}

// A restart of HNS deletes the endpoints of running pods, with or without their networks and namespaces. The pods are named
// until somebody deletes them.
func TestPodsLoseEndpoints(t *testing.T) {
	for _, kind := range kinds {
		for _, knobs := range []hnstest.Knobs{{}, {RestartLosesEndpoints: true}, {OmitNamespace: true}} {
			for _, namespaces := range []bool{true, false} {
				dev := devicesOf(kind)
				onWindows(t, dev, knobs, func(w *windows) {
					w.watchPods()
					w.m.Admin().AddNamespace()
					ns1, file1 := w.runPod(dev.Name, "web-1", 11)
					ns2, file2 := w.runPod(dev.Name, "web-2", 12)
					w.mends(5 * time.Minute)
					w.wantLost("before")
					w.m.Restart()
					if !namespaces {
						w.m.Admin().DeleteNamespace(ns1)
						w.m.Admin().DeleteNamespace(ns2)
					}
					w.mends(5 * time.Minute)
					w.wantLost("after the restart", "default/web-1", "default/web-2")
					if n := w.log.Count("cause=" + causePodsLost); n != 1 {
						t.Errorf("logged %d times", n)
					}
					// Somebody deletes one, and Kubernetes creates another.
					if err := os.Remove(file1); err != nil {
						t.Fatal(err)
					}
					if namespaces {
						w.m.Admin().DeleteNamespace(ns1)
					}
					w.runPod(dev.Name, "web-3", 13)
					w.mends(5 * time.Minute)
					w.wantLost("after one was deleted", "default/web-2")
					if err := os.Remove(file2); err != nil {
						t.Fatal(err)
					}
					w.mends(5 * time.Minute)
					w.wantLost("after the other was deleted")
				})
			}
		}
	}
}

// What flanneld finds at its start: a namespace without endpoint is that of a pod which lost it, but a pod whose namespace is
// gone may be one that the runtime has forgotten.
func TestPodsLostBefore(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.watchPods()
		w.m.Admin().AddNamespace()
		forgotten, _ := w.runPod("flannel.4096", "forgotten", 11)
		w.m.Admin().DeleteNamespace(forgotten)
		if err := w.m.Admin().DeleteEndpoint("forgotten_flannel.4096"); err != nil {
			t.Fatal(err)
		}
		w.runPod("flannel.4096", "lost", 12)
		if err := w.m.Admin().DeleteEndpoint("lost_flannel.4096"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(w.opts.PodResults, "torn"), []byte(`{"containerId"`), 0o600); err != nil {
			t.Fatal(err)
		}
		w.mends(5 * time.Minute)
		w.wantLost("at the start", "default/lost")
		// What cannot be read changes nothing.
		w.m.Fail(hnstest.Fault{Func: "HcnEnumerateNamespaces", Code: hns.RPCCallFailed})
		w.mends(5 * time.Minute)
		w.wantLost("while HNS fails", "default/lost")
	})
}

// The runtime has removed a pod's namespace, and has left its result and its endpoint. The pod is not named when somebody
// deletes the endpoint, too.
func TestPodsRemovedByTheRuntime(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.watchPods()
		w.m.Admin().AddNamespace()
		w.runPod("flannel.4096", "running", 11)
		w.mends(5 * time.Minute)
		removed, _ := w.runPod("flannel.4096", "removed", 12)
		w.mends(5 * time.Minute)
		w.m.Admin().DeleteNamespace(removed)
		w.runPod("flannel.4096", "other", 13) // so that the namespaces are read
		w.mends(5 * time.Minute)
		if err := w.m.Admin().DeleteEndpoint("removed_flannel.4096"); err != nil {
			t.Fatal(err)
		}
		w.mends(5 * time.Minute)
		w.wantLost("after the endpoint was deleted")
	})
}

// A look that fails ends a row of looks: a pod is named when two looks after the failed one find it lost. A pod that is named
// already stays so.
func TestPodsLostInTwoLooksInARow(t *testing.T) {
	for _, unread := range []string{"pods", "namespaces"} {
		onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
			w.bring(time.Minute)
			w.opts.PodResults = w.opts.StateDir // this driver was created before, and runs no podWatcher
			w.m.Admin().AddNamespace()
			lose := func(name string, n byte) {
				w.runPod("flannel.4096", name, n)
				if err := w.m.Admin().DeleteEndpoint(name + "_flannel.4096"); err != nil {
					t.Fatal(err)
				}
			}
			watcher, network := podWatcher{Driver: w.Driver}, w.observed.Load()
			look := func(results string, fails bool, want ...string) {
				w.Driver.opts.PodResults = results
				if err := watcher.look(w.t.Context(), network.pods, network.name); (err != nil) != fails {
					t.Errorf("%s: %v", unread, err)
				}
				w.wantLost(unread, want...)
			}
			lose("lost-1", 11)
			look(w.opts.PodResults, false)
			look(w.opts.PodResults, false, "default/lost-1")
			lose("lost-2", 12)
			look(w.opts.PodResults, false, "default/lost-1")
			if unread == "pods" {
				look(w.opts.StateDir+"\x00", true, "default/lost-1") // no system has such a path
			} else {
				w.m.Fail(hnstest.Fault{Func: "HcnEnumerateNamespaces", Code: hns.RPCCallFailed})
				look(w.opts.PodResults, true, "default/lost-1")
				w.m.Heal()
			}
			look(w.opts.PodResults, false, "default/lost-1")
			look(w.opts.PodResults, false, "default/lost-1", "default/lost-2")
		})
	}
}

// After a change to a backend without an HNS network, nothing is named and nothing causes passes.
func TestNoNetworkIsQuiet(t *testing.T) {
	onWindows(t, overlayDevice(ownSubnet), hnstest.Knobs{}, func(w *windows) {
		w.watchPods()
		w.m.Admin().AddNamespace()
		w.runPod("flannel.4096", "web-1", 11)
		w.mends(5 * time.Minute)
		w.m.Restart()
		w.mends(5 * time.Minute)
		w.wantLost("after a restart of HNS", "default/web-1")
		w.use(dataplane.Device{Name: "Ethernet", Kind: dataplane.Existing{}})
		w.state.Paths = nil
		w.bring(time.Minute)
		w.mends(5 * time.Minute)
		w.wantLost("without a network")
		if w.log.Count("level=INFO", "cause="+causePodsLost) > 0 {
			t.Errorf("the pods are not looked for, and are said to have endpoints:\n%s", w.log)
		}
		passes := 0
		for began := time.Now(); time.Since(began) < 5*time.Minute; {
			select {
			case <-w.Changes():
				_ = w.pass()
				passes++
			case <-time.After(time.Second):
			}
		}
		if passes > 0 {
			t.Errorf("%d passes in five minutes", passes)
		}
	})
}
