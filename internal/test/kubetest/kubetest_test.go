package kubetest_test

import (
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/internal/test/kubetest"
)

// One server for all checks, because each start takes seconds.
func TestServer(t *testing.T) {
	s := kubetest.Start(t, kubetest.PodCIDRs("10.244.0.0/16", "fd00:244::/48"), kubetest.Audit())
	cidrs := s.AddNode("node1", netip.MustParseAddr("192.0.2.1"))
	if len(cidrs) != 2 || cidrs[0].Bits() != 24 || cidrs[1].Bits() != 64 {
		t.Fatalf("podCIDRs are %v", cidrs)
	}
	list := func(token string) error {
		_, err := s.As(token).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := list(s.Token("node1")); err != nil {
		t.Error("a token of flannel's pod:", err)
	}
	if err := list(s.ShortToken("node1", time.Minute)); err != nil {
		t.Error("a token that expires in a minute:", err)
	}
	if err := list(s.ShortToken("node1", -time.Minute)); err == nil {
		t.Error("an expired token was accepted")
	}
	if s.AuditLog() == "" {
		t.Error("the audit log is empty")
	}
	s.Restart()
	n, err := s.Client.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
	if err != nil || len(n.Spec.PodCIDRs) != 2 {
		t.Errorf("after SIGKILL and a start node1 has %v, %v", n.Spec.PodCIDRs, err)
	}
	if again := s.AddNode("node2"); again[0] == cidrs[0] {
		t.Errorf("node2 got %v, which node1 has", again)
	}
	if err := list(s.Token("node1")); err != nil {
		t.Error("a token after the restart:", err)
	}
}
