package install

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// service makes a key such as the service manager's, with a command line.
func service(t *testing.T, kind uint32, commandLine string) (path string) {
	t.Helper()
	path = `SOFTWARE\flannel-test-containerd`
	key, _, err := registry.CreateKey(registry.LOCAL_MACHINE, path, registry.ALL_ACCESS)
	if err != nil {
		t.Fatal(err)
	}
	set := key.SetStringValue
	if kind == registry.EXPAND_SZ {
		set = key.SetExpandStringValue
	}
	if err := errors.Join(set("ImagePath", commandLine), key.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := registry.DeleteKey(registry.LOCAL_MACHINE, path); err != nil {
			t.Error(err)
		}
	})
	return path
}

// The configuration is that of the service's command line, or the default one.
func TestFind(t *testing.T) {
	config := write(t, map[string]string{"config.toml": "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = 'C:\\k\\bin'\n"})
	confDir := filepath.Join(programFiles(), "containerd", "cni", "conf")
	for name, c := range map[string]struct {
		kind    uint32
		line    string
		bin     string
		problem error
	}{
		"as containerd registers it": {registry.SZ, windows.ComposeCommandLine([]string{`C:\Program Files\containerd\containerd.exe`, "--run-service", "--config", config}), `C:\k\bin`, nil},
		"a variable":                 {registry.EXPAND_SZ, `"%ProgramFiles%\containerd\ContainerD.exe" -c=` + config, `C:\k\bin`, nil},
		"default":                    {registry.SZ, `C:\containerd\containerd.exe --run-service`, filepath.Join(programFiles(), "containerd", "cni", "bin"), nil},
		"without quotes":             {registry.SZ, `C:\Program Files\containerd\containerd.exe --run-service --config ` + config, `C:\k\bin`, nil},
		"without arguments either":   {registry.EXPAND_SZ, `%ProgramFiles%\containerd\ContainerD.exe`, filepath.Join(programFiles(), "containerd", "cni", "bin"), nil},
		"something else":             {registry.SZ, `C:\k\nssm.exe`, "", ErrNoContainerd},
		"a wrapper":                  {registry.SZ, `C:\a wrapper\nssm.exe C:\containerd\containerd.exe --run-service`, "", ErrNoContainerd},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := findService(service(t, c.kind, c.line))
			if !errors.Is(err, c.problem) || err == nil && (got.Bin.Dirs[0] != c.bin || got.Conf.Dirs[0] != confDir) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	if got, err := FindContainerd(); got.LookAgain <= 0 { // also without a service, which may be registered later
		t.Errorf("the machine's own: %+v, %v", got, err)
	}
	if got, err := findService(`SOFTWARE\flannel-test-none`); !errors.Is(err, ErrNoContainerd) {
		t.Errorf("no service: %+v, %v", got, err)
	}
	if got, err := findService(service(t, registry.SZ, "")); err == nil {
		t.Errorf("no command line: %+v", got)
	}
}
