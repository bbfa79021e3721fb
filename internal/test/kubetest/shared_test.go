package kubetest

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/internal/test/kubetest/cluster"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// A test gets the server of the one before it, without that test's objects.
func TestShared(t *testing.T) {
	var former *Server
	t.Run("first", func(t *testing.T) {
		s := Start(t, Bare())
		former = s
		s.AddNode("node1")
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cluster.Namespace}}
		if _, err := s.Client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: cluster.ServiceAccount}}
		if _, err := s.Client.CoreV1().ServiceAccounts(cluster.Namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Token("node1")          // a pod
		s.Reader("reader", "get") // an account, a role and its binding
	})
	t.Run("next", func(t *testing.T) {
		s := Start(t, Bare())
		if s != former {
			t.Fatal("another server was started")
		}
		all, err := s.inventory(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.fresh.compare(all); err != nil {
			t.Error(err)
		}
		// What was there before the first test cannot be restored.
		raw := []byte(`{"metadata":{"labels":{"changed":"yes"}}}`)
		if _, err := s.Client.CoreV1().Namespaces().Patch(t.Context(), "default", "application/merge-patch+json", raw, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := s.clean(t.Context()); err == nil {
			t.Error("a server with a changed object would go to another test")
		}
	})
}
