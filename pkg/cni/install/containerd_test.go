package install

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var defaults = ContainerdCNI{Conf: ContainerdSetting{Dirs: []string{"default-conf"}}, Bin: ContainerdSetting{Dirs: []string{"default-bin"}}}

// write writes files into a new directory, and returns the path of config.toml there.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "config.toml")
}

// Keys and tables of the versions are those of containerd's docs/cri/config.md.
func TestRead(t *testing.T) {
	const (
		v1  = "version = 1\n[plugins.cri.cni]\nconf_dir = 'c1'\nbin_dir = 'b1'\n"
		v2  = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  conf_dir = \"C:\\\\etc\\\\cni\"\n  bin_dir = \"b2\"\n"
		v3  = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nconf_dir = 'c3'\nbin_dirs = ['b3', 'b4']\nbin_dir = ''\n"
		v20 = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = 'b20'\nbin_dirs = []\n"
		bin = "[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = 'imported'\nconf_dir = 'imported'\n"
	)
	for name, c := range map[string]struct {
		files map[string]string
		conf  string
		bin   []string
		from  string // file that sets bin
	}{
		"no file":          {nil, "default-conf", []string{"default-bin"}, ""},
		"empty":            {map[string]string{"config.toml": ""}, "default-conf", []string{"default-bin"}, ""},
		"version 1":        {map[string]string{"config.toml": v1}, "c1", []string{"b1"}, "config.toml"},
		"no version":       {map[string]string{"config.toml": v1[12:]}, "c1", []string{"b1"}, "config.toml"},
		"version 2":        {map[string]string{"config.toml": v2}, `C:\etc\cni`, []string{"b2"}, "config.toml"},
		"version 3":        {map[string]string{"config.toml": v3}, "c3", []string{"b3", "b4"}, "config.toml"},
		"version 4":        {map[string]string{"config.toml": "version = 4" + v3[11:]}, "c3", []string{"b3", "b4"}, "config.toml"},
		"containerd 2.0":   {map[string]string{"config.toml": v20}, "default-conf", []string{"b20"}, "config.toml"},
		"other version":    {map[string]string{"config.toml": "version = 3" + v2[11:]}, "default-conf", []string{"default-bin"}, ""},
		"import":           {map[string]string{"config.toml": "version = 2\nimports = ['conf.d/*.toml']\n", "conf.d/cni.toml": bin}, "imported", []string{"imported"}, "conf.d/cni.toml"},
		"nothing imported": {map[string]string{"config.toml": "version = 2\nimports = ['conf.d/*.toml']\n"}, "default-conf", []string{"default-bin"}, ""},
		"import twice":     {map[string]string{"config.toml": "version = 2\nimports = ['a.toml']\n", "a.toml": "version = 2\nimports = ['config.toml', 'b.toml']\n", "b.toml": bin}, "imported", []string{"imported"}, "b.toml"},
		"import merged":    {map[string]string{"config.toml": v3 + "", "x": ""}, "c3", []string{"b3", "b4"}, "config.toml"},
		"import of others, 3": {map[string]string{"config.toml": "imports = ['a.toml']\n" + v3, "a.toml": "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nconf_dir = 'a'\n"},
			"a", []string{"b3", "b4"}, "config.toml"},
	} {
		t.Run(name, func(t *testing.T) {
			config := write(t, c.files)
			got, err := ReadContainerd(config, defaults)
			if err != nil || !slices.Equal(got.Conf.Dirs, []string{c.conf}) || !slices.Equal(got.Bin.Dirs, c.bin) || got.Config != config {
				t.Errorf("%+v, %v", got, err)
			}
			if want := filepath.Join(filepath.Dir(config), filepath.FromSlash(c.from)); c.from == "" && got.Bin.File != "" || c.from != "" && got.Bin.File != want {
				t.Errorf("set in %q, want %q", got.Bin.File, c.from)
			}
		})
	}
}

// What versions of containerd read differently is not guessed, and what containerd refuses is an error.
func TestRefused(t *testing.T) {
	const main = "version = 2\nimports = ['a.toml']\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = 'b'\n"
	for name, c := range map[string]struct {
		files map[string]string
		err   error
	}{
		// containerd#5837, containerd#9982
		"import of the plugin without its CNI": {map[string]string{"config.toml": main, "a.toml": "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry]\nconfig_path = 'x'\n"}, errAmbiguousContainerd},
		"import of a part":                     {map[string]string{"config.toml": main, "a.toml": "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nconf_dir = 'x'\n"}, errAmbiguousContainerd},
		// containerd#12891
		"import of a higher version": {map[string]string{"config.toml": main, "a.toml": "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nconf_dir = 'x'\n"}, errAmbiguousContainerd},
		"no CRI":                     {map[string]string{"config.toml": "disabled_plugins = ['cri']\n"}, ErrNoContainerd},
		"no CRI of version 2":        {map[string]string{"config.toml": "version = 2\ndisabled_plugins = ['io.containerd.grpc.v1.cri']\n"}, ErrNoContainerd},
		"both":                       {map[string]string{"config.toml": "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = 'a'\nbin_dirs = ['b']\n"}, nil},
		"not TOML":                   {map[string]string{"config.toml": "version = \n"}, nil},
		"not a path":                 {map[string]string{"config.toml": "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = 5\n"}, nil},
		"not paths":                  {map[string]string{"config.toml": "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['a', 5]\n"}, nil},
		"missing import":             {map[string]string{"config.toml": "version = 2\nimports = ['gone.toml']\n"}, nil},
		"pattern":                    {map[string]string{"config.toml": "version = 2\nimports = ['[']\n"}, nil},
	} {
		if got, err := ReadContainerd(write(t, c.files), defaults); err == nil || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	// Without anything about the plugin, both kinds of merging are the same.
	got, err := ReadContainerd(write(t, map[string]string{"config.toml": main, "a.toml": "version = 3\n[debug]\nlevel = 'info'\n"}), defaults)
	if err != nil || got.Bin.Dirs[0] != "b" {
		t.Errorf("%+v, %v", got, err)
	}
}

// Sources has every path whose change can change the result, also with an error.
func TestSources(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"no file":  {nil, []string{"config.toml"}},
		"not TOML": {map[string]string{"config.toml": "version = \n"}, []string{"config.toml"}},
		"no CRI":   {map[string]string{"config.toml": "disabled_plugins = ['cri']\n"}, []string{"config.toml"}},
		"imports": {map[string]string{"config.toml": "imports = ['a.toml', 'conf.d/*/x-?.toml']\n", "a.toml": "", "conf.d/1/x-1.toml": "", "conf.d/file": ""},
			[]string{"config.toml", "a.toml", "conf.d", "conf.d/1", "conf.d/1/x-1.toml", "conf.d/file"}},
		"missing import":  {map[string]string{"config.toml": "imports = ['gone.toml']\n"}, []string{"config.toml", "gone.toml"}},
		"import not TOML": {map[string]string{"config.toml": "imports = ['a.toml']\n", "a.toml": "version = \n"}, []string{"config.toml", "a.toml"}},
	} {
		config := write(t, c.files)
		got, _ := ReadContainerd(config, defaults) // some of them are errors
		for i, path := range c.want {
			c.want[i] = filepath.Join(filepath.Dir(config), filepath.FromSlash(path))
		}
		if slices.Sort(got.Sources); !slices.Equal(slices.Compact(got.Sources), slices.Sorted(slices.Values(c.want))) {
			t.Errorf("%s: %q, want %q", name, got.Sources, c.want)
		}
	}
}

// The file that disables the plugin is named.
func TestDisabledInAnImport(t *testing.T) {
	config := write(t, map[string]string{"config.toml": "version = 2\nimports = ['conf.d/*.toml']\n", "conf.d/a.toml": "disabled_plugins = ['cri']\n"})
	if _, err := ReadContainerd(config, defaults); !errors.Is(err, ErrNoContainerd) || !strings.Contains(err.Error(), "a.toml") {
		t.Errorf("disabled: %v", err)
	}
}

func TestConfigOf(t *testing.T) {
	for want, args := range map[string][][]string{
		"x": {{"--config", "x"}, {"-c", "x", "--log-level=debug"}, {"--run-service", "--config=x"}, {"-c=x"}, {"-config", "x"}},
		"":  {{}, {"--run-service"}, {"--config"}, {"config", "x"}, {"--log-file", "c"}},
	} {
		for _, a := range args {
			if got := configOf(a); got != want {
				t.Errorf("%q: %q, want %q", a, got, want)
			}
		}
	}
}

func TestMissing(t *testing.T) {
	dir := t.TempDir()
	none := filepath.Join(dir, "none")
	for _, c := range []struct {
		s    ContainerdSetting
		want bool
	}{{ContainerdSetting{Dirs: []string{dir}}, false}, {ContainerdSetting{Dirs: []string{none, dir}}, false}, {ContainerdSetting{Dirs: []string{none}}, true}} {
		if got := c.s.Missing(); (got != "") != c.want {
			t.Errorf("%v: %q", c.s, got)
		}
	}
}

// FuzzParse: no text makes it panic, and no result has no directory.
func FuzzParse(f *testing.F) {
	f.Add("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = 'b'\n")
	f.Add("version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['b']\nconf_dir = ''\n")
	path := filepath.Join(f.TempDir(), "config.toml") // each of the fuzzer's processes has its own
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := ReadContainerd(path, defaults)
		if err == nil && (len(got.Conf.Dirs) != 1 || len(got.Bin.Dirs) == 0 || reflect.DeepEqual(got, ContainerdCNI{})) {
			t.Errorf("%+v", got)
		}
	})
}
