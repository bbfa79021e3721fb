package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"flannel/pkg/conf"
)

// TestNothingSecret writes options in every way that a log or an error could.
func TestNothingSecret(t *testing.T) {
	const password = "hunter2"
	o, err := parseOptions([]string{"--etcd-username=u", "--etcd-password=" + password}, nil)
	if err != nil || o.Etcd.Password.Reveal() != password {
		t.Fatal(err)
	}
	hidden := struct{ within options }{o} // fmt calls no methods here
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		fmt.Fprintf(&out, verb+"\n", o)
		fmt.Fprintf(&out, verb+"\n", &o)
		fmt.Fprintf(&out, verb+"\n", o.Etcd.Password)
		fmt.Fprintf(&out, verb+"\n", hidden)
	}
	fmt.Fprintln(&out, o, o.Etcd.Password, o.Etcd.Password.String())
	for _, v := range []any{o, o.Etcd.Password, map[string]conf.Secret{"x": o.Etcd.Password}} {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Error(err)
		}
		out.Write(raw)
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("options", "all", o, "etcd", o.Etcd, "password", o.Etcd.Password, "hidden", hidden)
	}
	for _, args := range [][]string{{"--etcd-password=" + password}, {"--etcd-password", password, "--v=x", "--nonsense"},
		{"--etcd-endpoints=http://u:" + password + "@x:1"}, {"--etcd-endpoints=u:" + password + "@x"}, {"--kube-api-url=http://u:" + password + "@x"}} {
		o, err := parseOptions(args, nil)
		fmt.Fprintln(&out, err, o, o.Warnings)
		if err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
	o, err = parseOptions([]string{"--kube-subnet-mgr"}, []string{"FLANNELD_ETCD_PASSWORD=" + password, "FLANNELD_ETCD_PASWORD=" + password, "FLANNELD_ETCD_USERNAME=u"})
	fmt.Fprintln(&out, err, o, o.Warnings)
	if i := strings.Index(out.String(), password); i >= 0 {
		t.Errorf("the password is in …%s…", out.String()[max(0, i-200):i+20])
	}
	if strings.Contains(out.String(), fmt.Sprintf("%x", password)) || strings.Contains(out.String(), fmt.Sprintf("%X", password)) {
		t.Error("the password is there in hexadecimal")
	}
	if n := strings.Count(out.String(), conf.Redacted); n < 20 {
		t.Errorf("only %d places say that something is redacted", n)
	}
	if (conf.Secret{}).Reveal() != "" {
		t.Error("no secret is not empty")
	}
}
