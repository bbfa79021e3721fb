package probe

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const curve = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="

func TestRedact(t *testing.T) {
	r := newRedactor()
	r.add("known & \"quoted\"")
	r.add("begin")
	r.add("beginning of another")
	r.add("abc") // shorter than minSecret
	for in, want := range map[string]string{
		"FLANNELD_ETCD_PASSWORD=x y":                            "FLANNELD_ETCD_PASSWORD=[redacted] y",
		"--etcd-password=x --ip-masq":                           "--etcd-password=[redacted] --ip-masq",
		"-etcd-password x -v 4":                                 "-etcd-password [redacted] -v 4",
		`{"Backend":{"PSK":424242,"VNI":1}}`:                    "{\n  \"Backend\": {\n    \"PSK\": \"[redacted]\",\n    \"VNI\": 1\n  }\n}\n",
		`["-etcd-password","ab c","--x"]`:                       "[\n  \"-etcd-password\",\n  \"[redacted]\",\n  \"--x\"\n]\n",
		`{"a":"known & \"quoted\""}`:                            "{\n  \"a\": \"[redacted]\"\n}\n",
		`say known & "quoted" twice known+%26+%22quoted%22`:     "say [redacted] twice [redacted]",
		`error="parse \"known & \\\"quoted\\\"\""`:              `error="parse \"[redacted]\""`,
		"a beginning of another, begin":                         "a [redacted], [redacted]",
		"PrivateKey = abcdef=":                                  "PrivateKey = [redacted]",
		"preshared key: xyz":                                    "preshared key: [redacted]",
		"token: 'a b'":                                          "token: [redacted]",
		"  client-key-data: LS0t":                               "  client-key-data: [redacted]",
		"authorization: Basic dXNlcjpwYXNz":                     "authorization: Basic [redacted]",
		"http://u:p@h:1/ and http://h:1/":                       "http://[redacted]@h:1/ and http://h:1/",
		"nothing: 10.5.0.0/16, abc":                             "nothing: 10.5.0.0/16, abc",
		"-A FORWARD -m comment --comment \"flanneld\" -j X":     "-A FORWARD -m comment --comment \"flanneld\" -j X",
		"http://u:p@ss:w@h:1/":                                  "http://[redacted]@h:1/",
		"http://u:p@h:1,https://v:q@i:2,http://j:3":             "http://[redacted]@h:1,https://[redacted]@i:2,http://j:3",
		"wget --passwd=x; passphrase: y":                        "wget --passwd=[redacted]; passphrase: [redacted]",
		"key " + curve + ", PublicKey: " + curve:                "key [redacted], PublicKey: " + curve,
		`{"PublicKey":"` + curve + `","other":"` + curve + `"}`: "{\n  \"PublicKey\": \"" + curve + "\",\n  \"other\": \"[redacted]\"\n}\n",
		`level=INFO data="{\"PublicKey\":\"` + curve + `\"}"`:   `level=INFO data="{\"PublicKey\":\"` + curve + `\"}"`,
		`{"env":[{"name":"ETCD_PASSWORD","value":"a b"},{"name":"X","value":"c"}]}`: "{\n  \"env\": [\n    {\n      \"name\": \"ETCD_PASSWORD\",\n      \"value\": \"[redacted]\"\n    },\n    {\n" +
			"      \"name\": \"X\",\n      \"value\": \"c\"\n    }\n  ]\n}\n",
		"- name: \"A_TOKEN\"\n  value: a b\n- name: X\n  value: c":                            "- name: \"A_TOKEN\"\n  value: [redacted]\n- name: X\n  value: c",
		"data: LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0tCg== x":                                "data: [redacted] x",
		"x\n-----BEGIN PRIVATE KEY-----\nMII\nE=\n-----END PRIVATE KEY-----\ny":               "x\n[redacted]\ny",
		`first="a-b was changed to {192.0.2.1 aes128 false [241 242 243 4 5 6 7 248] false}"`: `first="a-b was changed to {192.0.2.1 aes128 false [redacted] false}"`,
		"-----BEGIN RSA PRIVATE KEY-----\nMII cut":                                            "[redacted]",
	} {
		if got := string(r.clean([]byte(in))); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

// The password of a URL is removed, and each part of it that an error of net/url quotes. Each part has a word of its own.
func TestRedactURL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	for _, password := range []string{
		"pl4nted1", "pl4nted1/pl4nted2", "pl4nted1#pl4nted2/pl4nted3", "pl4nted1/pl4nted2#pl4nted3", "pl4nted1?pl4nted2 pl4nted3", "pl4nted1@pl4nted2/",
		`pl4nted1"pl4nted2`, `pl4nted1\pl4nted2/`, "pl4nted1'pl4nted2%2Fpl4nted3", "pl4nted1%2pl4nted2", "1234/pl4nted1", "/pl4nted1", "#pl4nted1",
		"pl4nted1:pl4nted2/pl4nted3", "pl4nted1@pl4nted2:pl4nted3/pl4nted4",
	} {
		u := "https://user:" + password + "@host:6443/path"
		_, err := url.Parse(u)
		decoded, _ := url.PathUnescape(password)
		log := fmt.Sprintf("level=ERROR msg=%q error=%q\n%s", "connect to "+u, fmt.Sprint("kubeconfig: ", err), decoded)
		for where, kubeconfig := range map[string]string{
			"server": fmt.Sprintf("clusters: [{name: a, cluster: {server: %q}}]", u), "proxy": fmt.Sprintf("clusters: [{name: a, cluster: {proxy-url: %q}}]", u),
			"malformed": "]\n- server: " + u + "\n", "flag": "",
		} {
			r := newRedactor()
			if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
				t.Fatal(err)
			}
			if kubeconfig != "" {
				r.addKubeconfig(path)
			} else {
				r.addSettings([]string{"--kube-api-url=" + u}, nil)
			}
			if got := string(r.clean([]byte(log))); strings.Contains(got, "pl4nted") || !strings.Contains(got, "level=ERROR") {
				t.Errorf("%s: %s becomes\n%s", where, log, got)
			}
		}
	}
	r := newRedactor()
	for _, harmless := range []string{"https://host:6443", "https://user@host:6443", "x@y", "--v=4", "", "A=curl http://localhost:8080/\nrun \"$@\""} {
		r.addURL(harmless)
	}
	if len(r.known) > 0 {
		t.Errorf("%d secrets in URLs without a password", len(r.known))
	}
	r.addSettings([]string{"--etcd-endpoints=https://user:pl4nted1/x@host:1,HTTP://user:pl4nted2/y@host:2"}, nil)
	for _, u := range []string{"http://host:8080/x@y", "http://user:123456@host/x@y", "http://user:a:b:c/x@host"} {
		r.addURL(u)
	}
	if got := string(r.clean([]byte("pl4nted1/x pl4nted2/y 8080 123456 :a:b:c"))); got != "[redacted] [redacted] 8080 [redacted] :[redacted]" {
		t.Error("only the passwords are to be removed: ", got)
	}
}

func FuzzRedact(f *testing.F) {
	for _, s := range []string{"{}", `{"a":"{\"password\":\"hunter2-hunter2\"}"}`, "x=hunter2-hunter2", "hunter2-hunter2", "\"hunter2-hunter2", `["hunter2-hunter2"]`} {
		f.Add(s)
	}
	r := newRedactor()
	r.add("hunter2-hunter2")
	f.Fuzz(func(t *testing.T, s string) {
		if got := r.clean([]byte(s)); strings.Contains(string(got), "hunter2-hunter2") {
			t.Errorf("%q keeps the secret: %q", s, got)
		}
	})
}
