package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest"
	"flannel/internal/test/kubetest/cluster"
	"flannel/internal/test/logtest"
	"flannel/pkg/daemon"
	"flannel/pkg/status"
	"flannel/subnet/kube"
)

// publishedNode is a Node with a lease, in the subnet 10.244.n.0/24.
func publishedNode(name, system string, n int, status corev1.ConditionStatus, reason, message string) *corev1.Node {
	subnet := fmt.Sprintf("10.244.%d.0/24", n)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": system, "which": name},
		Annotations: annotated(n)}, Spec: corev1.NodeSpec{PodCIDR: subnet, PodCIDRs: []string{subnet}}}
	if status != "" {
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: status, Reason: reason, Message: message,
			LastTransitionTime: metav1.NewTime(time.Now().Add(-30*24*time.Hour - time.Hour))}}
	}
	return node
}

func annotated(n int) map[string]string {
	return map[string]string{kubetest.Prefix + "kube-subnet-manager": "true", kubetest.Prefix + "backend-type": "vxlan",
		kubetest.Prefix + "backend-data": `{"VNI":4096}`, kubetest.Prefix + "public-ip": fmt.Sprintf("192.0.2.%d", n)}
}

// TestCluster shows the Nodes of a real API server to somebody whose only permission is to list them.
func TestCluster(t *testing.T) {
	const crowd = 600 // more than a page
	s := kubetest.Start(t, kubetest.Audit())
	nodes := []*corev1.Node{
		publishedNode("linux-1", "linux", 1, "False", "FlannelIsUp", "Flannel is running on this node (flanneld v1.2.3)"),
		publishedNode("linux-2", "linux", 2, "False", "FlannelIsUp", "Flannel is running on this node"),
		publishedNode("router", "", 3, "", "", ""),
		publishedNode("windows-1", "windows", 4, "True", "FlannelIsNotInStep", "no \x1b[2J adapter\n (flanneld v1.2.3)"),
		{ObjectMeta: metav1.ObjectMeta{Name: "fresh", Annotations: annotated(5)}},
		{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
	}
	for _, n := range nodes {
		if _, err := s.Client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.AddPeers(t.Context(), crowd, func(i int) cluster.Peer {
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}), 32)
		return cluster.Peer{Name: fmt.Sprintf("crowd-%04d", i), PodCIDR: subnet, Annotations: annotated(9)}
	}); err != nil {
		t.Fatal(err)
	}
	kubeconfig, _ := s.Kubeconfig(s.Reader("reader", "list"), "")
	asReader := []string{"--kubeconfig-file=" + kubeconfig, "status", "--cluster", "--timeout=5m"}
	eventually.True(t, "the API server allows it", func() bool { // it reads new roles a moment later
		code, _, _ := flanneldSays(t.Context(), append(asReader, "--selector=which=linux-1")...)
		return code == exitOK
	})

	code, out, problems := flanneldSays(t.Context(), asReader...)
	var rows []string
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "crowd-") {
			rows = append(rows, strings.TrimSuffix(line, "\n"))
		}
	}
	want := []string{
		"nodes     2 ready, 1 not-ready, 601 unknown, 1 no-lease, 1 unmanaged", "",
		`NODE        STATE      AGE  SUBNET            BACKEND  ADDRESS    VERSION  REASON`,
		`fresh       no-lease   -    -                 -        -          -        no podCIDR`,
		`linux-1     ready      30d  10.244.1.0/24     vxlan    192.0.2.1  v1.2.3`,
		`linux-2     ready      30d  10.244.2.0/24     vxlan    192.0.2.2  flannel`,
		`other       unmanaged  -    -                 -        -          -        no annotation flannel.alpha.coreos.com/kube-subnet-manager=true`,
		`router      unknown    -    10.244.3.0/24     vxlan    192.0.2.3  -        no condition NetworkUnavailable`,
		`windows-1   not-ready  30d  10.244.4.0/24     vxlan    192.0.2.4  v1.2.3   no \x1b[2J adapter`,
	}
	if diff := cmp.Diff(fieldsOf(want), fieldsOf(rows)); diff != "" || code != exitNotReady || problems != "" {
		t.Errorf("exit code %d, %s\n%s\n%s", code, problems, diff, out)
	}
	heads, columns := strings.Split(out, "\n"), strings.Fields(rows[2])
	if column := strings.Index(heads[2], columns[3]); strings.Count(out, "\n") != crowd+len(want) || strings.Index(heads[3], "10.245.0.0/32") != column {
		t.Errorf("%d lines, of which the first are not aligned:\n%s", strings.Count(out, "\n"), strings.Join(heads[:5], "\n"))
	}
	if audit := s.AuditLog(); !strings.Contains(audit, "limit=500") || !strings.Contains(audit, "continue=ey") {
		t.Error("the list has no pages")
	}

	t.Run("JSON", func(t *testing.T) {
		code, out, _ := flanneldSays(t.Context(), append(asReader, "-o", "json", "--selector=kubernetes.io/os in (linux,windows),which")...)
		answer := read[clusterAnswer](t, out)
		var got []string
		for _, n := range answer.Nodes {
			got = append(got, fmt.Sprint(n.Name, " ", n.State, " ", n.OS, " ", n.Daemon, " ", n.Version, " ", n.Endpoints[0].PublicIP, " ", len(n.Endpoints[0].Data) > 0))
		}
		if diff := cmp.Diff([]string{"linux-1 ready linux flanneld v1.2.3 192.0.2.1 true", "linux-2 ready linux flannel  192.0.2.2 true", "windows-1 not-ready windows flanneld v1.2.3 192.0.2.4 true"}, got); diff != "" || code != exitNotReady || answer.Ready {
			t.Errorf("exit code %d\n%s\n%s", code, diff, out)
		}
	})
	t.Run("all are ready", func(t *testing.T) {
		code, out, _ := flanneldSays(t.Context(), append(asReader, "--json", "--selector=which in (linux-1,linux-2)")...)
		if answer := read[clusterAnswer](t, out); code != exitOK || !answer.Ready || len(answer.Nodes) != 2 {
			t.Errorf("exit code %d\n%s", code, out)
		}
	})
	t.Run("none", func(t *testing.T) {
		code, out, _ := flanneldSays(t.Context(), append(asReader, "--json", "--selector=which=nobody")...)
		if answer := read[clusterAnswer](t, out); code != exitNotReady || answer.Ready || answer.Nodes == nil {
			t.Errorf("exit code %d\n%s", code, out)
		}
	})
	t.Run("wide", func(t *testing.T) {
		_, out, _ := flanneldSays(t.Context(), append(asReader, "-o=wide", "--selector=which=windows-1")...)
		if lines := strings.Split(out, "\n"); len(lines) < 4 || !logtest.Names(lines[2], "OS", "DATA") || !logtest.Names(lines[3], "windows", `{"VNI":4096}`) {
			t.Error(out)
		}
	})
	t.Run("without the permission", func(t *testing.T) {
		kubeconfig, _ := s.Kubeconfig(s.Reader("getter", "get"), "")
		code, out, _ := flanneldSays(t.Context(), "--kubeconfig-file="+kubeconfig, "status", "--cluster", "--json", "--timeout=5m")
		if is := read[failure](t, out); code != exitError || !logtest.Names(is.Problem, "getter", "--verb=list") {
			t.Errorf("exit code %d\n%s", code, out)
		}
	})
	t.Run("on a node", func(t *testing.T) {
		file := daemonWith(t, kubeOptions{On: true, Kubeconfig: kubeconfig, AnnotationPrefix: kubetest.Prefix})
		code, out, problems := flanneldSays(t.Context(), "--subnet-file="+file, "status", "--cluster", "--timeout=5m", "--selector=which=linux-1", "--json")
		if answer := read[clusterAnswer](t, out); code != exitOK || len(answer.Nodes) != 1 || answer.Nodes[0].State != kube.NodeReady {
			t.Errorf("exit code %d\n%s%s", code, out, problems)
		}
	})
}

// A daemon in a pod asks the API server for commands on its host, which lack what the pod has: the address, the credentials,
// or a kubeconfig that is in the image.
func TestClusterOnBehalf(t *testing.T) {
	s := kubetest.Start(t)
	if _, err := s.Client.CoreV1().Nodes().Create(t.Context(), publishedNode("linux-1", "linux", 1, "False", "FlannelIsUp", "Flannel is running on this node"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubeconfig, _ := s.Kubeconfig(s.Token("linux-1"), "")
	k := kubeOptions{On: true, Kubeconfig: kubeconfig, AnnotationPrefix: kubetest.Prefix, NodeName: "linux-1"}
	for name, set := range map[string]func(reported *kubeOptions){
		"address and credentials": func(reported *kubeOptions) { reported.Kubeconfig = "" },
		"credentials":             func(reported *kubeOptions) { reported.Kubeconfig, reported.APIURL = "", "https://"+s.Addr() },
		"kubeconfig":              func(reported *kubeOptions) { reported.Kubeconfig = filepath.Join(t.TempDir(), "absent") },
	} {
		t.Run(name, func(t *testing.T) {
			reported := k
			set(&reported)
			file := podDaemon(t, reported, onBehalf(options{Kube: k}, http.NotFoundHandler()))
			eventually.True(t, "the API server allows it", func() bool {
				code, out, problems := flanneldSays(t.Context(), "--subnet-file="+file, "status", "--cluster", "--timeout=5m", "--json")
				t.Log(problems)
				answer := read[clusterAnswer](t, out)
				return code == exitOK && len(answer.Nodes) == 1 && answer.Nodes[0].State == kube.NodeReady
			})
			_, out, problems := flanneldSays(t.Context(), "--subnet-file="+file, "doctor", "--timeout=5m", "--json")
			verdicts := map[string]string{}
			for _, c := range read[[]struct{ Code, Verdict string }](t, out) {
				verdicts[c.Code] = c.Verdict
			}
			for _, code := range []string{"FL401", "FL402", "FL404"} {
				if verdicts[code] != "ok" {
					t.Errorf("%s is %s\n%s", code, verdicts[code], problems)
				}
			}
		})
	}
}

// podDaemon answers as a daemon does that reports these options, and returns its subnet file.
func podDaemon(t *testing.T, reported kubeOptions, others http.Handler) (subnetFile string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "subnet.env")
	board := &status.Board{}
	board.EndPass(nil)
	board.Add(status.OfProcess, func(r *status.Report) { r.Store, r.Settings = "kubernetes", options{Kube: reported}.settings() })
	go status.Keep(t.Context(), status.Socket(file), status.Handler(board, nil, nil, others), slog.New(slog.DiscardHandler)) //nolint:errcheck // it returns nil
	eventually.True(t, "the daemon answers", func() bool { _, err := status.Ask(t.Context(), status.Socket(file)); return err == nil })
	return file
}

// A daemon that is stopped, before it is asked for its settings or after that, does not stop status --cluster.
func TestClusterOfHungDaemon(t *testing.T) {
	cluster := func(file string) (problem string) {
		code, out, _ := flanneldSays(t.Context(), "--subnet-file="+file, "status", "--cluster", "--timeout=1s", "--json")
		if code != exitError {
			t.Errorf("exit code %d\n%s", code, out)
		}
		return read[failure](t, out).Problem
	}
	file := filepath.Join(t.TempDir(), "subnet.env")
	l, err := net.Listen("unix", status.Socket(file)) // the kernel accepts connections, and no program answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // nothing was written
	if problem := cluster(file); !logtest.Names(problem, "--kubeconfig-file") {
		t.Error(problem)
	}
	hang := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-t.Context().Done() })
	file = podDaemon(t, kubeOptions{On: true}, hang)
	// On a slow machine, the settings may take longer than the timeout.
	eventually.True(t, "it says that the daemon hangs", func() bool { return strings.Contains(cluster(file), status.ErrNoAnswer.Error()) })
}

// check-config --kube is about Windows nodes only if the cluster has one, or if it is asked to.
func TestCheckConfigOfCluster(t *testing.T) {
	s := kubetest.Start(t)
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "conf"}, Data: map[string]string{"net-conf.json": `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`}}
	if _, err := s.Client.CoreV1().ConfigMaps(cluster.Namespace).Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	checks := func(when string, want ...string) {
		t.Helper()
		for _, system := range []string{"linux", "all"} {
			_, out, _ := flanneldSays(t.Context(), "--kubeconfig-file="+s.File("admin.kubeconfig"), "check-config", "--kube", "--configmap="+cluster.Namespace+"/conf", "--os="+system, "--timeout=5m", "--json")
			var got []string
			for _, c := range read[checkAnswer](t, out).Systems {
				got = append(got, c.System)
			}
			if system == "all" {
				want = []string{"linux", "windows"}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, --os=%s: %s\n%s", when, system, diff, out)
			}
		}
	}
	checks("no Windows node", "linux")
	if _, err := s.Client.CoreV1().Nodes().Create(t.Context(), publishedNode("windows-1", "windows", 1, "", "", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	checks("a Windows node", "linux", "windows")
}

// fieldsOf makes rows comparable whose columns have other widths.
func fieldsOf(rows []string) (all [][]string) {
	for _, r := range rows {
		all = append(all, strings.Fields(r))
	}
	return all
}

// daemonWith answers status as a daemon does whose leases are there, and returns its subnet file.
func daemonWith(t *testing.T, k kubeOptions) (subnetFile string) {
	t.Helper()
	o := options{Kube: k, Settings: daemon.Settings{SubnetFile: filepath.Join(t.TempDir(), "subnet.env")}}
	board := &status.Board{}
	o.addProcess(board)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- answerStatus(ctx, o, board, func() int { return 0 }, http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	eventually.True(t, "the daemon answers", func() bool { _, err := status.Ask(t.Context(), status.Socket(o.SubnetFile)); return err == nil })
	return o.SubnetFile
}

// Leases in etcd say nothing of their nodes' state.
func TestClusterInEtcd(t *testing.T) {
	file := daemonWith(t, kubeOptions{})
	code, out, _ := flanneldSays(t.Context(), "--subnet-file="+file, "status", "--cluster", "--timeout=5m", "--json")
	if is := read[failure](t, out); code != exitError || !logtest.Names(is.Problem, "etcd", "--peers", "--kubeconfig-file") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
