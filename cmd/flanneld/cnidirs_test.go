package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/pkg/cni/install"
	"flannel/pkg/doctor"
	"flannel/pkg/file"
)

// beside runs a command on a node whose containerd has these directories.
func beside(t *testing.T, found install.ContainerdCNI, err error, args ...string) (code int, out, problems string) {
	t.Helper()
	var stdout, stderr strings.Builder
	code = run(t.Context(), process{args: args, stdout: &stdout, stderr: &stderr, containerd: func() (install.ContainerdCNI, error) { return found, err }})
	return code, stdout.String(), stderr.String()
}

// at returns directories below dir, of which conf exists.
func at(t *testing.T, dir string) install.ContainerdCNI {
	t.Helper()
	found := install.ContainerdCNI{Config: filepath.Join(dir, "config.toml"),
		Conf: install.ContainerdSetting{Dirs: []string{filepath.Join(dir, "conf")}},
		Bin:  install.ContainerdSetting{Dirs: []string{filepath.Join(dir, "bin")}, File: filepath.Join(dir, "config.toml"), Key: "bin_dir"}}
	if err := os.Mkdir(found.Conf.Dirs[0], 0o755); err != nil {
		t.Fatal(err)
	}
	return found
}

var errRead = errors.New("not TOML")

func TestCNIDirs(t *testing.T) {
	dir := t.TempDir()
	found := at(t, dir)
	none := fmt.Errorf("%w: no service", install.ErrNoContainerd)
	for _, c := range []struct {
		err                        error
		code                       int
		conf, bin, config, problem string
	}{
		{nil, exitOK, found.Conf.Dirs[0], found.Bin.Dirs[0], found.Config, "bin_dir"},
		{none, exitOK, systemPath("/etc/cni/net.d"), systemPath("/opt/cni/bin"), "", ""},
		{errRead, exitError, systemPath("/etc/cni/net.d"), systemPath("/opt/cni/bin"), "", errRead.Error()},
	} {
		code, out, _ := beside(t, found, c.err, "cni-dirs", "--json")
		d := read[cniDirs](t, out)
		if code != c.code || d.Conf != c.conf || d.Bin != c.bin || d.Config != c.config || !strings.Contains(d.Problem, c.problem) {
			t.Errorf("%v: %d %s", c.err, code, out)
		}
		code, out, _ = beside(t, found, c.err, "cni-dirs")
		if code != c.code || !logtest.Names(out, c.conf, c.bin) {
			t.Errorf("%v: %d %s", c.err, code, out)
		}
		if c.config == "" != (strings.Count(out, "(assumed)") == 2) || errors.Is(c.err, install.ErrNoContainerd) && !strings.Contains(out, none.Error()) {
			t.Errorf("%v: does it say that the directories are assumed, and why?\n%s", c.err, out)
		}
	}
}

// Plugins are installed where containerd looks, whatever its directory is; the flag takes precedence.
func TestInstallWhereContainerdLooks(t *testing.T) {
	dir := t.TempDir()
	found := at(t, dir)
	source := filepath.Join(dir, "source")
	if err := errors.Join(os.Mkdir(source, 0o755), os.WriteFile(filepath.Join(source, "plugin"), []byte("binary"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{source, filepath.Join(source, "plugin")} {
		if code, out, problems := beside(t, found, nil, "install-cni", "--plugin-from="+from); code != exitOK || !exists(filepath.Join(dir, "bin", "plugin"))() {
			t.Errorf("%s: %d %s%s", from, code, out, problems)
		}
		if err := os.RemoveAll(filepath.Join(dir, "bin")); err != nil {
			t.Fatal(err)
		}
	}
	if code, _, problems := beside(t, found, errRead, "install-cni", "--plugin-from="+source); code != exitError || !logtest.Names(problems, errRead.Error(), "--plugin-to") {
		t.Errorf("containerd's configuration cannot be read: %d %s", code, problems)
	}
	to := filepath.Join(dir, "elsewhere")
	if code, _, problems := beside(t, found, errRead, "install-cni", "--plugin-from="+source, "--plugin-to="+to); code != exitOK || !exists(filepath.Join(to, "plugin"))() || exists(filepath.Join(dir, "bin"))() {
		t.Errorf("%d %s", code, problems)
	}
}

// The daemon and install-cni --watch keep plugins where containerd looks, also if its
// configuration can be read only later, or is changed.
func TestKeepWhereContainerdLooks(t *testing.T) {
	dir := watchedDir(t)
	path := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	write := func(name, text string) {
		t.Helper()
		if _, err := file.Put(path(name), []byte(text), 0o644); err != nil { // nobody reads a part of it
			t.Fatal(err)
		}
	}
	config := func(bin string) string {
		return "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = '" + path(bin) + "'\n"
	}
	write("source/plugin", "binary")
	write("conf", `{"name":"cbr0","plugins":[{"type":"flannel"}]}`)
	write("containerd/config.toml", "version = ")
	p := process{containerd: func() (install.ContainerdCNI, error) {
		return install.ReadContainerd(path("containerd/config.toml"), install.ContainerdCNI{Conf: install.ContainerdSetting{Dirs: []string{path("net.d")}}, Bin: install.ContainerdSetting{Dirs: []string{path("bin")}}})
	}}
	log := &logtest.Log{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	files := install.Files{ConfFrom: path("conf"), ConfTo: path("net.d/10-flannel.conflist"), PluginFrom: path("source")}
	go func() { ended <- p.keepCNI(ctx, files, "cni-plugin-to", log.Logger()) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	unknown := func() bool { return log.Count("cause="+causeNoCNIDirs) > 0 }
	eventually.True(t, "the configuration cannot be read", unknown)
	eventually.True(t, "what does not depend on it is installed", exists(files.ConfTo))

	write("containerd/config.toml", config("bin 1"))
	eventually.True(t, "it can be read", exists(path("bin 1/plugin")))
	write("containerd/config.toml", "imports = ['conf.d/*.toml']\n"+config("bin 2"))
	eventually.True(t, "another directory", exists(path("bin 2/plugin")))
	write("containerd/conf.d/cni.toml", config("bin 3"))
	eventually.True(t, "an import that did not exist", exists(path("bin 3/plugin")))

	// That the source is a directory is not decided while it cannot be read.
	rename := func(from, to string) {
		t.Helper()
		eventually.Nil(t, "renamed", func() error { return os.Rename(path(from), path(to)) }) // Windows refuses while somebody reads in it
	}
	rename("source", "away")
	write("containerd/conf.d/cni.toml", config("bin 4"))
	eventually.True(t, "plugins for another directory are missing", func() bool {
		return log.Count("installed_in="+path("bin 4")+string(filepath.Separator)) > 0
	})
	rename("away", "source")
	eventually.True(t, "the source is back", exists(path("bin 4/plugin")))

	log.Reset()
	write("containerd/conf.d/cni.toml", "version = ")
	eventually.True(t, "the configuration cannot be read any more", unknown)
	eventually.True(t, "the plugin is deleted", removed(path("bin 4/plugin")))
	eventually.True(t, "the plugin is restored where it was", exists(path("bin 4/plugin")))
	// Wine keeps a deleted directory as long as it is watched, and with it the one above it.
	write("containerd/config.toml", config("bin 5"))
	eventually.True(t, "the import is not watched any more", exists(path("bin 5/plugin")))
	eventually.True(t, "the configuration is deleted", removed(path("containerd")))
	eventually.True(t, "there is no configuration", exists(path("bin/plugin")))
}

// A plugin that does not exist yet when the daemon starts is installed when it does, into containerd's directory.
func TestKeepPluginThatComesLater(t *testing.T) {
	dir := watchedDir(t)
	found := at(t, dir)
	source := filepath.Join(dir, "source", "plugin")
	if err := os.Mkdir(filepath.Dir(source), 0o755); err != nil {
		t.Fatal(err)
	}
	log := &logtest.Log{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	p := process{containerd: func() (install.ContainerdCNI, error) { return found, nil }}
	go func() { ended <- p.keepCNI(ctx, install.Files{PluginFrom: source}, "cni-plugin-to", log.Logger()) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	eventually.True(t, "the plugin is missing", func() bool { return log.Count("level=WARN") > 0 })
	if _, err := file.Put(source, []byte("binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the plugin is installed", exists(filepath.Join(found.Bin.Dirs[0], "plugin")))
}

// Plugins follow containerd also when no file changes: when its service is registered later, or gets another command line.
func TestKeepWhereServiceLooks(t *testing.T) {
	dir := watchedDir(t)
	bin := func(name string) string { return filepath.Join(dir, name) }
	if _, err := file.Put(filepath.Join(dir, "source", "plugin"), []byte("binary"), 0o644); err != nil {
		t.Fatal(err)
	}
	var registered atomic.Pointer[string] // the directory of plugins; nil: none
	p := process{containerd: func() (install.ContainerdCNI, error) {
		found := install.ContainerdCNI{LookAgain: 10 * time.Millisecond}
		to := registered.Load()
		if to == nil {
			return found, errRead
		}
		found.Conf, found.Bin = install.ContainerdSetting{Dirs: []string{bin("net.d")}}, install.ContainerdSetting{Dirs: []string{*to}}
		return found, nil
	}}
	log := &logtest.Log{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- p.keepCNI(ctx, install.Files{PluginFrom: bin("source")}, "cni-plugin-to", log.Logger())
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	eventually.True(t, "nothing is known", func() bool { return log.Count("cause="+causeNoCNIDirs) > 0 })
	for _, name := range []string{"bin 1", "bin 2"} {
		registered.Store(new(bin(name)))
		eventually.True(t, name, exists(filepath.Join(bin(name), "plugin")))
	}
}

// The configuration is written where containerd looks. That the plugins are missing there is a warning.
func TestWriteWhereContainerdLooks(t *testing.T) {
	dir := t.TempDir()
	found := at(t, dir)
	netConf := filepath.Join(dir, "net-conf.json")
	if err := os.WriteFile(netConf, []byte(`{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": 4096, "Port": 4789}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--kube-subnet-mgr", "--net-config-path=" + netConf, "--subnet-file=" + filepath.Join(dir, "run", "subnet.env"),
		"cni-conf", "--service-cidr=10.96.0.0/12", "--management-ip=192.168.1.5"}
	if code, _, problems := beside(t, found, errRead, args...); code != exitError || !logtest.Names(problems, errRead.Error(), "--to") {
		t.Errorf("containerd's configuration cannot be read: %d %s", code, problems)
	}
	code, out, problems := beside(t, found, nil, args...)
	named := logtest.Parse(problems).With("cause="+causeNoPlugins).Naming("error", found.Bin.Dirs[0]).Naming("set_by", found.Config)
	if code != exitOK || !exists(filepath.Join(found.Conf.Dirs[0], "10-flannel.conf"))() || len(named) != 1 {
		t.Errorf("%d %s%s", code, out, problems)
	}
	if code, out, problems := beside(t, found, nil, append(args, "--to=-")...); code != exitOK || len(logtest.Parse(problems).With("level=WARN")) > 0 {
		t.Errorf("printed: %d %s%s", code, out, problems)
	}
}

// The doctor looks where containerd looks, and says which of the directories does not exist.
func TestDoctorLooksWhereContainerdLooks(t *testing.T) {
	dir := t.TempDir()
	found := at(t, dir)
	if err := os.WriteFile(filepath.Join(found.Conf.Dirs[0], "05-theirs.conf"), []byte(`{"type":"theirs"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	look := func(err error, flags ...string) map[string]doctor.Result {
		t.Helper()
		_, out, problems := beside(t, found, err, append([]string{"--subnet-file=" + filepath.Join(dir, "subnet.env"), "doctor", "--json", "--timeout=1m"}, flags...)...)
		var results []doctor.Result
		if err := json.Unmarshal([]byte(out), &results); err != nil {
			t.Fatalf("%v\n%s%s", err, out, problems)
		}
		byCode := map[string]doctor.Result{}
		for _, r := range results {
			byCode[r.Code] = r
		}
		return byCode
	}
	results := look(nil)
	if r := results["FL301"]; r.Verdict != doctor.Warn || !logtest.Names(r.Seen, "05-theirs.conf") {
		t.Errorf("%+v", r)
	}
	if r := results["FL303"]; r.Verdict != doctor.Warn || !logtest.Names(r.Seen, found.Bin.Dirs[0], "bin_dir", found.Config) {
		t.Errorf("%+v", r)
	}
	if r := look(errRead, "--cni-conf-dir="+found.Conf.Dirs[0])["FL303"]; r.Verdict != doctor.Warn || !logtest.Names(r.Seen, errRead.Error()) {
		t.Errorf("%+v", r)
	}
	if r := look(errRead, "--cni-conf-dir="+found.Conf.Dirs[0], "--cni-bin-dir="+dir)["FL303"]; r.Verdict != doctor.OK {
		t.Errorf("%+v", r)
	}
}
