package kubetest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// Prefix is the prefix of flannel's annotations.
const Prefix = "flannel.alpha.coreos.com/"

// Sample returns a Node with all kinds of fields that a reader must skip, and
// the annotations of a dual-stack peer.
func Sample(i int) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", i), UID: "u-1", ResourceVersion: fmt.Sprint(100 + i),
			Generation: 7, CreationTimestamp: metav1.Unix(1_700_000_000, 5),
			Labels: map[string]string{"a": "b", Prefix + "backend-type": "no", "kubernetes.io/hostname": "host.example"}, Annotations: map[string]string{"other": "x", Prefix + "unknown": "x"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: &metav1.FieldsV1{}}}},
		Spec: corev1.NodeSpec{PodCIDR: "10.5.1.0/24", PodCIDRs: []string{"10.5.1.0/24", "fd05:1::/64"}, ProviderID: "x",
			Unschedulable: true},
	}
	for name, value := range map[string]string{
		"kube-subnet-manager": "true", "backend-type": "vxlan", "public-ip": "192.168.0.1",
		"public-ipv6":     "2001:db8::1",
		"backend-data":    `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`,
		"backend-v6-data": `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:45"}`,
	} {
		n.Annotations[Prefix+name] = value
	}
	for j := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example/image-%d@sha256:%064d", j, j)}, SizeBytes: 1 << 30})
	}
	return n
}

// Encode encodes an object as protobuf, as the API server does.
func Encode(t testing.TB, o runtime.Object, kind string) []byte {
	t.Helper()
	o.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	var b bytes.Buffer
	if err := serializer.NewSerializer(nil, nil).Encode(o, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Frame encodes an event of a watch with an encoded object.
func Frame(t testing.TB, kind string, object []byte) []byte {
	t.Helper()
	e := metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: object}}
	raw, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)
}
