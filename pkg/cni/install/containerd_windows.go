package install

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// serviceKey is where the service manager keeps the service that containerd
// --register-service makes, in HKEY_LOCAL_MACHINE.
const serviceKey = `SYSTEM\CurrentControlSet\Services\containerd`

// lookAgain is how soon a service is noticed that was registered, or whose command line was
// changed.
const lookAgain = 30 * time.Second

// FindContainerd returns what the service containerd uses. Without a service, there are no
// Sources.
func FindContainerd() (ContainerdCNI, error) {
	found, err := findService(serviceKey)
	found.LookAgain = lookAgain
	return found, err
}

// findService is FindContainerd for the service with this key in the registry.
func findService(key string) (ContainerdCNI, error) {
	args, err := serviceArgs(key)
	if err != nil {
		return ContainerdCNI{}, err
	}
	if base := strings.ToLower(filepath.Base(args[0])); base != "containerd.exe" && base != "containerd" {
		return ContainerdCNI{}, fmt.Errorf("%w: its service runs %s", ErrNoContainerd, args[0])
	}
	dir := filepath.Join(programFiles(), "containerd")
	config := configOf(args[1:])
	if config == "" {
		config = filepath.Join(dir, "config.toml")
	}
	return ReadContainerd(config, ContainerdCNI{Conf: ContainerdSetting{Dirs: []string{filepath.Join(dir, "cni", "conf")}}, Bin: ContainerdSetting{Dirs: []string{filepath.Join(dir, "cni", "bin")}}})
}

// programFiles returns the directory of programs.
func programFiles() string {
	if dir := os.Getenv("ProgramFiles"); dir != "" {
		return dir
	}
	return `C:\Program Files`
}

// unquoted matches the path of the program at the start of a command line without quotes. It may
// have spaces (C:\Program Files\…): Windows finds the program nevertheless.
var unquoted = regexp.MustCompile(`(?i)^([^"]*?\.exe)(\s|$)`)

// serviceArgs returns the program of the service and its arguments.
func serviceArgs(path string) ([]string, error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, path, registry.QUERY_VALUE)
	if errors.Is(err, registry.ErrNotExist) {
		return nil, fmt.Errorf("%w: there is no service of this name", ErrNoContainerd)
	} else if err != nil {
		return nil, fmt.Errorf("read the service containerd: %w", err)
	}
	defer key.Close() //nolint:errcheck // only releases a handle
	text, kind, err := key.GetStringValue("ImagePath")
	if err == nil && kind == registry.EXPAND_SZ {
		text, err = registry.ExpandString(text)
	}
	var args []string
	if err == nil {
		args, err = windows.DecomposeCommandLine(unquoted.ReplaceAllString(text, `"$1"$2`))
	}
	if err == nil && len(args) == 0 {
		err = errors.New("its command line is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("read the service containerd: %w", err)
	}
	return args, nil
}
