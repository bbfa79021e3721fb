package dist_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest"
	"flannel/internal/test/kubetest/cluster"
)

// needed are the requests that flanneld makes, and its only permissions. "get pods" is for flannel, which runs in some pods
// during a rollout.
var needed = []string{
	"create events", "get nodes", "get pods", "list nodes", "patch nodes/status", "watch nodes",
}

// rights returns all permissions of a service account. It asks about every verb on every resource of the server.
func rights(t *testing.T, s *kubetest.Server, account string) (all []string) {
	t.Helper()
	lists, err := s.Client.Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	subresources := []metav1.APIResource{{Name: "nodes/status"}, {Name: "nodes/proxy"}, {Name: "pods/exec"}, {Name: "serviceaccounts/token"}}
	for _, list := range lists {
		group, _, found := strings.Cut(list.GroupVersion, "/")
		resources := list.APIResources
		if !found {
			group, resources = "", append(resources, subresources...)
		}
		for _, r := range resources {
			name, sub, _ := strings.Cut(r.Name, "/")
			for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} {
				review := &authv1.SubjectAccessReview{Spec: authv1.SubjectAccessReviewSpec{
					User:               "system:serviceaccount:" + cluster.Namespace + ":" + account,
					Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + cluster.Namespace, "system:authenticated"},
					ResourceAttributes: &authv1.ResourceAttributes{Group: group, Resource: name, Subresource: sub, Verb: verb},
				}}
				got, err := s.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got.Status.Allowed {
					all = append(all, strings.TrimSuffix(verb+" "+r.Name+"."+group, "."))
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

func TestRightsAreExactlyWhatIsUsed(t *testing.T) {
	s := kubetest.Start(t)
	anybody := rights(t, s, "nobody") // what every account may do
	var own []string
	for _, r := range rights(t, s, cluster.ServiceAccount) {
		if !slices.Contains(anybody, r) {
			own = append(own, r)
		}
	}
	if diff := cmp.Diff(needed, own); diff != "" {
		t.Error("needed (-) and granted (+) differ:\n", diff)
	}
}

// attempt is a request with the token of node1.
type attempt struct {
	node  string
	patch string
	fails string // what the error names; empty: the request is allowed
}

const prefix = "flannel.alpha.coreos.com/"

func annotate(key, value string) string {
	text, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}}) // strings
	return string(text)
}

func condition(kind, status string) string {
	return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"reason":"FlannelIsUp","message":"Flannel is running on this node"}]}}`, kind, status)
}

var attempts = map[string]attempt{
	"our annotation":               {"node1", annotate(prefix+"backend-type", "vxlan"), ""},
	"our annotation, changed":      {"node1", annotate(prefix+"backend-data", `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`), ""},
	"our annotation, removed":      {"node1", `{"metadata":{"annotations":{"` + prefix + `backend-v6-data":null}}}`, ""},
	"our condition":                {"node1", condition("NetworkUnavailable", "False"), ""},
	"our condition, changed":       {"node1", condition("NetworkUnavailable", "True"), ""},
	"another node":                 {"node2", annotate(prefix+"backend-type", "vxlan"), "node1"},
	"another node's condition":     {"node2", condition("NetworkUnavailable", "True"), "node1"},
	"the operator's annotation":    {"node1", annotate(prefix+"public-ip-overwrite", "192.0.2.9"), "annotations"},
	"a foreign annotation":         {"node1", annotate("volumes.kubernetes.io/controller-managed-attach-detach", "false"), "annotations"},
	"a foreign annotation removed": {"node1", `{"metadata":{"annotations":{"example.com/kept":null}}}`, "annotations"},
	"a label":                      {"node1", `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, "metadata"},
	"a label removed":              {"node1", `{"metadata":{"labels":null}}`, "metadata"},
	"a finalizer":                  {"node1", `{"metadata":{"finalizers":["example.com/stay"]}}`, "metadata"},
	"an owner":                     {"node1", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"1"}]}}`, "metadata"},
	"an address":                   {"node1", `{"status":{"addresses":[{"type":"ExternalIP","address":"192.0.2.66"}]}}`, "conditions"},
	"capacity":                     {"node1", `{"status":{"capacity":{"cpu":"999"}}}`, "conditions"},
	"node info":                    {"node1", `{"status":{"nodeInfo":{"kubeletVersion":"v0"}}}`, "conditions"},
	"another condition":            {"node1", condition("Ready", "False"), "NetworkUnavailable"},
	"a new condition":              {"node1", condition("example.com/Broken", "True"), "NetworkUnavailable"},
	"a condition removed":          {"node1", `{"status":{"conditions":[{"$patch":"delete","type":"Ready"}]}}`, "NetworkUnavailable"},
}

func TestTokenOfANodeIsForThatNode(t *testing.T) {
	s := kubetest.Start(t)
	ctx := t.Context()
	for _, name := range []string{"node1", "node2"} {
		s.AddNode(name)
		for _, a := range []string{"example.com/kept", prefix + "backend-v6-data"} {
			if _, err := s.Client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(annotate(a, "here")), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	flannel := s.As(s.Token("node1"))
	enforced(t, flannel)
	for name, a := range attempts {
		t.Run(name, func(t *testing.T) {
			_, err := flannel.CoreV1().Nodes().Patch(ctx, a.node, types.StrategicMergePatchType, []byte(a.patch), metav1.PatchOptions{}, "status")
			checkVerdict(t, err, a.fails)
		})
	}
	for node, fails := range map[string]string{"node1": "", "node2": "node1"} {
		t.Run("event on "+node, func(t *testing.T) {
			e := &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{GenerateName: "flannel.", Namespace: metav1.NamespaceDefault},
				InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node}, Reason: "Test", Type: corev1.EventTypeNormal,
			}
			_, err := flannel.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, e, metav1.CreateOptions{})
			checkVerdict(t, err, fails)
		})
	}
	t.Run("a token without a node", func(t *testing.T) {
		_, err := s.As(s.LooseToken()).CoreV1().Nodes().Patch(ctx, "node1", types.StrategicMergePatchType, []byte(annotate(prefix+"backend-type", "udp")), metav1.PatchOptions{}, "status")
		checkVerdict(t, err, "is not bound to a node")
	})
	t.Run("others than flannel", func(t *testing.T) {
		_, err := s.Client.CoreV1().Nodes().Patch(ctx, "node1", types.StrategicMergePatchType, []byte(condition("Ready", "False")), metav1.PatchOptions{}, "status")
		checkVerdict(t, err, "")
	})
}

// During a rollout, or after it was undone, flannel runs with our role and policy. It reads its node's name from its pod, and
// writes its annotations and the condition.
func TestFlannelInTheMiddleOfARollout(t *testing.T) {
	for name, text := range map[string]string{"manifest": manifest(t), "chart": mustChart(t, userValues)} {
		t.Run(name, func(t *testing.T) {
			s := emptyCluster(t)
			if err := s.Apply(t.Context(), false, objects(t, text)...); err != nil {
				t.Fatal(err)
			}
			s.AddNode("node1")
			s.AddNode("node2")
			flannel := s.As(s.Token("node1"))
			enforced(t, flannel)
			pod, err := flannel.CoreV1().Pods(cluster.Namespace).Get(t.Context(), cluster.FlannelPod("node1"), metav1.GetOptions{})
			if err != nil || pod.Spec.NodeName != "node1" {
				t.Fatalf("its pod is on %q, %v", pod.Spec.NodeName, err)
			}
			if _, err := flannel.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
			annotations, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
				prefix + "kube-subnet-manager": "true", prefix + "backend-type": "vxlan", prefix + "public-ip": "192.0.2.1",
				prefix + "backend-data": `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`, prefix + "backend-v6-data": "null",
			}}})
			if err != nil {
				t.Fatal(err)
			}
			for _, patch := range []string{string(annotations), condition("NetworkUnavailable", "False")} {
				_, err := flannel.CoreV1().Nodes().Patch(t.Context(), "node1", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
				checkVerdict(t, err, "")
			}
		})
	}
}

func mustChart(t *testing.T, values string) string {
	t.Helper()
	text, err := chart(t, values)
	if err != nil {
		t.Fatal(err, text)
	}
	return text
}

// The chart's policy uses the prefix of annotations that is set in the values, or by an argument of flanneld.
func TestPolicyKnowsThePrefix(t *testing.T) {
	for name, given := range map[string]string{
		"value":              values["own prefix"],
		"argument":           "args: [--kube-annotation-prefix=example.com/net]\n",
		"flannel's argument": "flannel: {args: [--kube-subnet-mgr, -kube-annotation-prefix=example.com/net]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := emptyCluster(t)
			if err := s.Apply(t.Context(), false, objects(t, mustChart(t, given))...); err != nil {
				t.Fatal(err)
			}
			s.AddNode("node1")
			s.AddNode("node2")
			knowsPrefix(t, s)
		})
	}
}

// knowsPrefix checks that the policy allows annotations with the prefix example.com/net- only, and names it.
func knowsPrefix(t *testing.T, s *kubetest.Server) {
	t.Helper()
	flannel := s.As(s.Token("node1"))
	enforced(t, flannel)
	for key, fails := range map[string]string{"example.com/net-backend-type": "", prefix + "backend-type": "this policy has the prefix example.com/net-: it must be that of --kube-annotation-prefix"} {
		// The server may still use the former policy for a moment.
		eventually.Nil(t, key, func() error {
			_, err := flannel.CoreV1().Nodes().Patch(t.Context(), "node1", types.StrategicMergePatchType, []byte(annotate(key, "vxlan")), metav1.PatchOptions{}, "status")
			return verdict(err, fails)
		})
	}
}

// verdict returns an error unless a request was allowed, or was refused for what it should.
func verdict(err error, fails string) error {
	switch {
	case fails == "":
		return err
	case err == nil:
		return errors.New("the request was allowed")
	case !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), fails):
		return fmt.Errorf("refused with %w, not for %q", err, fails)
	}
	return nil
}

func checkVerdict(t *testing.T, err error, fails string) {
	t.Helper()
	if err := verdict(err, fails); err != nil {
		t.Error(err)
	}
}

// enforced waits until the server enforces the policy.
func enforced(t *testing.T, flannel kubernetes.Interface) {
	t.Helper()
	eventually.True(t, "the policy is enforced", func() bool {
		_, err := flannel.CoreV1().Nodes().Patch(t.Context(), "node2", types.StrategicMergePatchType, []byte(annotate(prefix+"public-ip", "192.0.2.2")), metav1.PatchOptions{}, "status")
		return err != nil
	})
}
