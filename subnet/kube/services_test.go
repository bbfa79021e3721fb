package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// services asks a real cluster, then one that knows only what kubeadm wrote: a kubelet may not read the other.
func services(t *testing.T, o outside) {
	admin := Options{Kubeconfig: o.File("admin.kubeconfig")}
	networks, err := ServiceNetworks(t.Context(), admin)
	if err != nil || len(networks) == 0 || !networks[0].IsValid() {
		t.Errorf("the cluster's own: %v, %v", networks, err)
	}
	o.add("services-1")
	kubeconfig, _ := o.Kubeconfig(o.Token("services-1"), "")
	if _, err := ServiceNetworks(t.Context(), Options{Kubeconfig: kubeconfig}); err == nil || strings.Count(err.Error(), "forbidden") != 2 {
		t.Errorf("with flannel's own rights: %v", err)
	}
	api, err := newClient(admin)
	if err != nil {
		t.Fatal(err)
	}
	maps := o.Client.CoreV1().ConfigMaps("kube-system")
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kubeadm-config"}}
	for text, want := range map[string]string{
		"kind: ClusterConfiguration\nnetworking:\n  dnsDomain: cluster.local\n  podSubnet: 10.244.0.0/16\n  serviceSubnet: 10.96.0.0/12\n": "[10.96.0.0/12]",
		"networking:\n  serviceSubnet: \"10.96.0.0/16,fd00:96::/112\"\n":                                                                   "[10.96.0.0/16 fd00:96::/112]",
		"networking: {}\n":                    "serviceSubnet",
		"networking:\n  serviceSubnet: ten\n": "serviceSubnet",
	} {
		c.Data = map[string]string{"ClusterConfiguration": text}
		_ = maps.Delete(t.Context(), c.Name, metav1.DeleteOptions{}) // there is none at first
		if _, err := maps.Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		got, err := api.kubeadmServiceNetworks(t.Context())
		if said := fmt.Sprint(got, err); !strings.Contains(said, want) {
			t.Errorf("%q: %s, want %s", text, said, want)
		}
	}
	c.Data = map[string]string{"net-conf.json": "{}"}
	if _, err := maps.Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if raw, err := NetConf(t.Context(), "kube-system/kubeadm-config", admin); err != nil || string(raw) != "{}" {
		t.Errorf("the network configuration is %q, %v", raw, err)
	}
	c.Data = nil
	if _, err := maps.Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"kube-system/kubeadm-config": "no key net-conf.json", "kube-system/none": `"none" not found`} {
		if _, err := NetConf(t.Context(), name, admin); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
