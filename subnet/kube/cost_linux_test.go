package kube

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/internal/test/kubetest"
	"flannel/internal/test/kubetest/cluster"
	"flannel/subnet"
)

// flood makes n Nodes with leases of their own.
func flood(b testing.TB, s *kubetest.Server, n int) {
	b.Helper()
	begin := time.Now()
	err := s.AddPeers(b.Context(), n, func(i int) cluster.Peer {
		return cluster.Peer{Name: fmt.Sprintf("peer-%d", i), PodCIDR: prefixes(fmt.Sprintf("10.%d.%d.0/24", 1+i>>8, i&255))[0], Annotations: map[string]string{
			prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan",
			prefix + "backend-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":"c6:d2:00:00:%02x:%02x"}`, i>>8, i&255),
			prefix + "public-ip":    fmt.Sprintf("192.168.%d.%d", i>>8, i&255)}}
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("%d nodes made in %v", n, time.Since(begin))
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // it cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkStart is a manager's start among PEERS nodes (5,000): until it has the whole set, and what that costs.
func BenchmarkStart(b *testing.B) {
	count := 5000
	if n, err := strconv.Atoi(os.Getenv("PEERS")); err == nil {
		count = n
	}
	s := kubetest.Start(b)
	flood(b, s, count)
	if _, err := s.Client.CoreV1().Nodes().Create(b.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec: corev1.NodeSpec{PodCIDR: "10.255.0.0/24", PodCIDRs: []string{"10.255.0.0/24"}}}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	kubeconfig, _ := s.Kubeconfig(s.Token("one"), "")
	network := subnet.Config{V4: subnet.Network{Prefix: prefixes("10.0.0.0/8")[0], SubnetLen: 24}}
	runtime.GC()
	var used time.Duration
	var received int64
	for b.Loop() {
		began := cpu()
		ctx, cancel := context.WithCancel(b.Context())
		t := &traffic{}
		o := Options{NodeName: "one", Prefix: prefix, Kubeconfig: kubeconfig}
		o.wrap = func(rt http.RoundTripper) http.RoundTripper { t.rt = rt; return t }
		m, err := New(ctx, o)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := m.Acquire(ctx, network, subnet.Lease{}); err != nil {
			b.Fatal(err)
		}
		got, ended := make(chan int, 1), make(chan error)
		go func() { ended <- m.Watch(ctx, func(s subnet.Set) { got <- len(s.Leases) }) }()
		if n := <-got; n != count {
			b.Fatalf("%d peers", n)
		}
		cancel()
		<-ended
		m.Close() //nolint:errcheck // it returns none
		used += cpu() - began
		received += t.received.Load()
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	b.ReportMetric(float64(used.Milliseconds())/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(received)/float64(b.N)/1e6, "MB/op")
}
