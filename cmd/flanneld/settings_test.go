package main

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"flannel/pkg/status"
)

// The doctor gets from the daemon what it needs to find the leases: all but secrets,
// and no flag that was given to the doctor itself is replaced.
func TestSettings(t *testing.T) {
	const password = "pl4nted"
	parse := func(environ []string, args ...string) options {
		t.Helper()
		o, err := parseOptions(args, environ)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	// adopted returns the options of a doctor that asked the daemon.
	adopted := func(daemon, doctor options) options {
		t.Helper()
		raw, err := json.Marshal(daemon.settings())
		if err != nil || strings.Contains(string(raw), password) {
			t.Fatalf("%s, %v", raw, err)
		}
		var s status.Settings
		if err := json.Unmarshal(raw, &s); err != nil {
			t.Fatal(err)
		}
		doctor.adopt(s)
		return doctor
	}
	file := func(name string) string { return filepath.Join(t.TempDir(), name) }

	kube := parse([]string{"NODE_NAME=n1", "POD_NAME=p", "POD_NAMESPACE=ns"}, "--kube-subnet-mgr", "--kubeconfig-file="+file("conf"),
		"--kube-api-url=https://10.0.0.1:6443", "--kube-annotation-prefix=example.org/x", "--net-config-path="+file("net.json"), "--kube-api-from="+file("other"))
	if got := adopted(kube, parse(nil)); !reflect.DeepEqual(got.Kube, kube.Kube) {
		t.Errorf("%+v, want %+v", got.Kube, kube.Kube)
	}
	if got := adopted(kube, parse(nil, "--kubeconfig-file=/mine")); got.Kube.Kubeconfig != "/mine" || got.Kube.APIURL != kube.Kube.APIURL {
		t.Errorf("%+v", got.Kube)
	}
	etcd := parse([]string{"FLANNELD_ETCD_PASSWORD=" + password}, "--etcd-endpoints=https://10.0.0.2:2379,https://10.0.0.3:2379", "--etcd-prefix=/other",
		"--etcd-cafile="+file("ca"), "--etcd-certfile="+file("cert"), "--etcd-keyfile="+file("key"), "--etcd-username=u")
	if got := adopted(etcd, parse([]string{"FLANNELD_ETCD_PASSWORD=" + password}, "--etcd-username=u")); !reflect.DeepEqual(got.Etcd, etcd.Etcd) || got.Kube.On {
		t.Errorf("%+v, want %+v", got.Etcd, etcd.Etcd)
	}
	if got := adopted(etcd, parse(nil, "--etcd-prefix=/mine")); got.Etcd.Prefix != "/mine" || got.Etcd.Username != "" || !reflect.DeepEqual(got.Etcd.Endpoints, etcd.Etcd.Endpoints) {
		t.Errorf("%+v", got.Etcd)
	}
	// A value is given even if it is the default, on the command line or in a variable.
	same := []string{"--kube-subnet-mgr=false", "--kube-annotation-prefix=flannel.alpha.coreos.com", "--etcd-prefix=/coreos.com/network", "--kubeconfig-file="}
	given := parse([]string{"FLANNELD_ETCD_ENDPOINTS=http://127.0.0.1:4001,http://127.0.0.1:2379"}, same...)
	if got := adopted(kube, given); got.Kube.On || got.Kube.AnnotationPrefix != given.Kube.AnnotationPrefix || got.Kube.Kubeconfig != "" || got.Kube.APIURL != kube.Kube.APIURL {
		t.Errorf("the flags %q were replaced: %+v", same, got.Kube)
	}
	if got := adopted(etcd, given); got.Etcd.Prefix != given.Etcd.Prefix || !slices.Equal(got.Etcd.Endpoints, given.Etcd.Endpoints) || got.Etcd.CAFile != etcd.Etcd.CAFile {
		t.Errorf("the flags %q and the variable were replaced: %+v", same, got.Etcd)
	}
	relative := parse(nil, "--kube-subnet-mgr", "--kubeconfig-file=conf")
	if got := adopted(relative, parse(nil)).Kube.Kubeconfig; !filepath.IsAbs(got) {
		t.Errorf("the file is %s for a program in another directory", got)
	}
}
