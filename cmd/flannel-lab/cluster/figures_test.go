//go:build cluster

package cluster_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/cluster"
	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	api "flannel/internal/test/kubetest/cluster"
)

// figures holds durations and sizes by what was measured.
type figures map[string][]float64

// TestClusterFigures prints the figures of a cluster in Documentation/scale.md. It
// fails only if something cannot be measured. FLANNEL_FIGURES is the number of
// clusters; each has twice as many pods for each CNI plugin, ten at most. For the
// page it was 3.
func TestClusterFigures(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("FLANNEL_FIGURES"))
	f := figures{}
	for i := range cmp.Or(n, 1) {
		t.Run(fmt.Sprintf("cluster %d", i+1), func(t *testing.T) { f.measure(t, cmp.Or(n, 1)) })
	}
	f.print(t)
}

func (f figures) add(what string, value float64) { f[what] = append(f[what], value) }

// print logs the median, the least and the largest of each figure.
func (f figures) print(t *testing.T) {
	var names []string
	for name, values := range f {
		slices.Sort(values)
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		values := f[name]
		t.Logf("%s: median %.4g, %.4g to %.4g, of %d", name, values[len(values)/2], values[0], values[len(values)-1], len(values))
	}
}

// measure starts a cluster of three nodes and measures what it costs.
func (f figures) measure(t *testing.T, rounds int) {
	ctx := t.Context()
	c, err := cluster.New(ctx, cluster.Options{Nodes: 3})
	must(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error("close the cluster:", err)
		}
	})
	began := time.Now()
	must(t, c.Install(ctx))
	f.add("apply until all nodes are ready, s", time.Since(began).Seconds())
	must(t, c.ApplyPods(ctx))
	f.startPods(t, c, 2*min(rounds, 5))
	for _, n := range c.Nodes {
		f.memory(t, c, n)
	}
}

// startPods starts pods on the first node, by this plugin and by the former one in
// turns. The former one has a list that sorts first, and a directory of its own for
// its saved configurations, by which the test knows which of the two was called.
func (f figures) startPods(t *testing.T, c *cluster.Cluster, pods int) {
	n := c.Nodes[0]
	bin, err := lab.BinDir()
	must(t, err)
	program, err := os.ReadFile(filepath.Join(bin, "cni-former", "flannel"))
	must(t, err)
	must(t, n.WriteFile("/opt/cni/bin/former", string(program)))
	_, err = n.Run(t.Context(), "chmod", "755", "/opt/cni/bin/former")
	must(t, err)
	list, err := n.ReadFile(flannelList)
	must(t, err)
	const dir, file = "/var/lib/cni/former", netDir + "05-former.conflist"
	former := strings.Replace(string(list), `"type": "flannel",`, `"type": "former", "dataDir": "`+dir+`",`, 1)
	if former == string(list) {
		t.Fatalf("no plugin flannel in %s", list)
	}
	for i := range 2 * pods {
		isFormer := i%2 == 1
		if isFormer {
			must(t, n.WriteFile(file, former))
		} else {
			_, err := n.Run(t.Context(), "rm", "-f", file)
			must(t, err)
		}
		for !f.startPod(t, c, fmt.Sprintf("pod%d", i), dir, isFormer) {
		}
	}
}

// startPod starts a pod and deletes it. It reports whether the wanted plugin was
// called: containerd may not have noticed yet that the directory has changed.
func (f figures) startPod(t *testing.T, c *cluster.Cluster, name, formerDir string, former bool) bool {
	ctx, n := t.Context(), c.Nodes[0]
	pods := c.Client.CoreV1().Pods(metav1.NamespaceDefault)
	watch, err := pods.Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: name}))
	must(t, err)
	defer watch.Stop()
	before := kubeletMetrics(t, c, n)
	began := time.Now()
	grace := int64(1)
	_, err = pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: n.Name,
		TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "pod", Image: "flannel-lab-pod:dev", Args: []string{"serve"}}}}},
		metav1.CreateOptions{})
	must(t, err)
	for e := range watch.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Status.Phase == corev1.PodRunning {
			break
		}
	}
	took := time.Since(began)
	saved, err := n.Run(ctx, "sh", "-c", "ls "+formerDir+" 2>/dev/null | wc -l")
	must(t, err)
	wanted := (strings.TrimSpace(saved) != "0") == former
	after := kubeletMetrics(t, c, n)
	const sandboxes = "kubelet_run_podsandbox_duration_seconds"
	if wanted && after.Sum(sandboxes+"_count") == before.Sum(sandboxes+"_count")+1 {
		kind := map[bool]string{false: "this plugin", true: "the former plugin"}[former]
		f.add("pod created until it is reported as running, "+kind+", s", took.Seconds())
		f.add("of this, sandbox with network, "+kind+", s", after.Sum(sandboxes+"_sum")-before.Sum(sandboxes+"_sum"))
	}
	kubectl(t, c, "delete", "pod", name)
	return wanted
}

// kubeletMetrics returns the metrics of a node's kubelet.
func kubeletMetrics(t *testing.T, c *cluster.Cluster, n *cluster.Node) api.Metrics {
	t.Helper()
	return api.Metrics(kubectl(t, c, "get", "--raw", "/api/v1/nodes/"+n.Name+"/proxy/metrics"))
}

// memory adds the memory of flannel's pod on a node.
func (f figures) memory(t *testing.T, c *cluster.Cluster, n *cluster.Node) {
	ctx := t.Context()
	var summary struct {
		Pods []struct {
			PodRef     struct{ Namespace string }
			Containers []struct {
				Name   string
				Memory struct{ WorkingSetBytes float64 }
			}
		}
	}
	_, err := machine.Until(ctx, machine.Longest, func(ctx context.Context) error { // kubelet looks every ten seconds and more
		text, err := c.Kubectl(ctx, "get", "--raw", "/api/v1/nodes/"+n.Name+"/proxy/stats/summary")
		if err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(text), &summary); err != nil {
			return err
		}
		for _, p := range summary.Pods {
			if p.PodRef.Namespace == api.Namespace && len(p.Containers) == 2 && p.Containers[0].Memory.WorkingSetBytes*p.Containers[1].Memory.WorkingSetBytes > 0 {
				return nil
			}
		}
		return errors.New("kubelet has not looked at flannel's pod")
	})
	must(t, err)
	const mega = 1e6
	sum := 0.0
	for _, p := range summary.Pods {
		for _, container := range p.Containers {
			if p.PodRef.Namespace == api.Namespace {
				f.add(container.Name+", working set, MB", container.Memory.WorkingSetBytes/mega)
				sum += container.Memory.WorkingSetBytes
			}
		}
	}
	f.add("flannel's pod, working set, MB", sum/mega)
	pid, err := n.Daemon()
	must(t, err)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	kilobytes := regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`).FindSubmatch(status)
	if kilobytes == nil {
		t.Fatalf("no peak RSS in %s", status)
	}
	peak, err := strconv.ParseFloat(string(kilobytes[1]), 64)
	must(t, err)
	f.add("flanneld, peak RSS with the pages of its program, MB", peak*1024/mega)
}
