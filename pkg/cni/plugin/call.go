package plugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"
)

// call runs one CNI command of the delegate.
type call struct {
	args   invoke.Args // the CNI variables; exec replaces Command
	stderr io.Writer   // gets what a successful delegate writes to its stderr

	// inherit, if not nil, is passed to the delegate, and stays open in it and
	// in its child processes until the last of them exits. See savedFile.
	inherit *os.File
	// onDowngrade, if not nil, is called with the downgraded configuration
	// before the delegate is retried.
	onDowngrade func(delegate) error
}

// run calls the delegate and returns its stdout. If the delegate rejects the
// CNI version of the configuration, run retries once with the highest version
// that the delegate supports.
func (c *call) run(ctx context.Context, d delegate) ([]byte, error) {
	path, err := invoke.FindInPath(d.Type, filepath.SplitList(c.args.Path))
	if err != nil {
		return nil, cniError(types.ErrInvalidNetworkConfig, "delegate: %w", err)
	}
	out, err := c.exec(ctx, path, d.bytes(), c.args.Command)
	if codeOf(err) != types.ErrIncompatibleCNIVersion {
		return out, err
	}
	supported, versionErr := c.versions(ctx, path)
	if versionErr != nil {
		return nil, err // that of the command, which runtimes know
	}
	lower := d.highestBelow(supported)
	if lower == "" {
		return nil, err
	}
	d.setVersion(lower)
	if c.onDowngrade != nil {
		if err := c.onDowngrade(d); err != nil {
			return nil, err
		}
	}
	return c.exec(ctx, path, d.bytes(), c.args.Command)
}

// highestBelow returns the highest supported version below the configuration's
// version, "" if there is none.
func (d delegate) highestBelow(supported []string) string {
	best := "" // which the library compares as 0.1.0
	for _, v := range supported {
		if tooHigh, err := version.GreaterThanOrEqualTo(v, d.version()); err != nil || tooHigh { // err: v is no version
			continue
		}
		if higher, err := version.GreaterThanOrEqualTo(v, best); err == nil && (best == "" || higher) {
			best = v
		}
	}
	return best
}

// setVersion changes the CNI version of the configuration and converts
// prevResult to it. A prevResult that cannot be converted is removed.
func (d delegate) setVersion(to string) {
	from := d.version()
	d.conf.set("cniVersion", to)
	raw, ok := d.conf["prevResult"]
	if !ok {
		return
	}
	delete(d.conf, "prevResult")
	result, err := decodeResult(from, raw)
	if err != nil {
		return
	}
	if result, err = result.GetAsVersion(to); err == nil {
		d.conf.set("prevResult", result)
	}
}

// versions returns the CNI versions that the plugin at path supports.
func (c *call) versions(ctx context.Context, path string) ([]string, error) {
	out, err := c.exec(ctx, path, []byte(`{"cniVersion":"`+version.Current()+`"}`), "VERSION")
	if err != nil {
		return nil, err
	}
	info, err := new(version.PluginDecoder).Decode(out)
	if err != nil {
		return nil, err
	}
	return info.SupportedVersions(), nil
}

// busyWait is how long exec retries a program that cannot be started because
// another process has it open for writing (ETXTBSY), as cp does during an update.
const busyWait = 5 * time.Second

// exec runs a command of the plugin at path and returns its stdout.
func (c *call) exec(ctx context.Context, path string, stdin []byte, command string) (stdout []byte, err error) {
	args := c.args
	args.Command = command
	start := time.Now()
	for {
		var out, errOut bytes.Buffer
		cmd := exec.CommandContext(ctx, path)
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = args.AsEnv(), bytes.NewReader(stdin), &out, &errOut
		if c.inherit != nil {
			cmd.ExtraFiles = []*os.File{c.inherit}
		}
		err := cmd.Run()
		if errors.Is(err, syscall.ETXTBSY) && time.Since(start) < busyWait {
			time.Sleep(busyWait / 50)
			continue
		}
		if err != nil {
			return nil, pluginError(filepath.Base(path), err, out.Bytes(), errOut.Bytes())
		}
		_, _ = errOut.WriteTo(c.stderr) // for information only
		return out.Bytes(), nil
	}
}

// maxQuoted is how many bytes of a plugin's output an error quotes at most.
const maxQuoted = 2000

// pluginError converts the output of a failed plugin to an error. If stdout is
// a CNI error, its code and details are kept.
func pluginError(name string, failed error, stdout, stderr []byte) error {
	e := &types.Error{}
	if json.Unmarshal(stdout, e) == nil && e.Msg != "" {
		e.Msg, e.Code = name+": "+e.Msg, cmp.Or(e.Code, types.ErrInternal)
		return e
	}
	output := strings.TrimSpace(string(stdout) + "\n" + string(stderr))
	if len(output) > maxQuoted {
		output = output[:maxQuoted]
	}
	if output == "" {
		return cniError(types.ErrInternal, "%s: %w", name, failed)
	}
	return cniError(types.ErrInternal, "%s: %w: %s", name, failed, strings.ToValidUTF8(output, "?"))
}

// decodeResult decodes the result of a plugin. Old plugins omit the version of
// the result; it is the version of the configuration then.
func decodeResult(confVersion string, raw []byte) (types.Result, error) {
	var result object
	if err := json.Unmarshal(raw, &result); err != nil {
		return nil, err
	}
	if result == nil {
		return nil, fmt.Errorf("%.40q is not a JSON object", raw)
	}
	key, _ := result.key("cniVersion")
	resultVersion := cmp.Or(result.text("cniVersion"), confVersion)
	delete(result, key) // it may be spelled in another case
	result.set("cniVersion", resultVersion)
	return create.Create(resultVersion, encode(result))
}
