package cniplugin

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

// call is one command to the delegate.
type call struct {
	args   invoke.Args
	stderr io.Writer

	// inherit, if not nil, is open in the delegate and in all processes that it starts, for as long as any of them lives.
	inherit *os.File
	// downgraded, if not nil, is called before the delegate is called again, with a version of CNI that it knows.
	downgraded func(delegate) error
}

// run calls the delegate and returns what it prints. A delegate that does not know the configuration's version of CNI is
// called again with the highest one that it knows.
func (c *call) run(ctx context.Context, d delegate) ([]byte, error) {
	path, err := invoke.FindInPath(d.Type, filepath.SplitList(c.args.Path))
	if err != nil {
		return nil, cniError(types.ErrInvalidNetworkConfig, "delegate: %w", err)
	}
	out, err := c.exec(ctx, path, d.bytes(), c.args.Command)
	if codeOf(err) != types.ErrIncompatibleCNIVersion {
		return out, err
	}
	known, unknown := c.versions(ctx, path)
	if unknown != nil || !d.downgrade(known) {
		return nil, err
	}
	if c.downgraded != nil {
		if err := c.downgraded(d); err != nil {
			return nil, err
		}
	}
	return c.exec(ctx, path, d.bytes(), c.args.Command)
}

// downgrade sets the highest of the known versions that is below the present one. It reports whether there is one.
func (d delegate) downgrade(known []string) bool {
	best := ""
	for _, v := range known {
		if above, err := version.GreaterThanOrEqualTo(v, d.version()); err != nil || above {
			continue
		}
		if higher, err := version.GreaterThanOrEqualTo(v, best); err == nil && (best == "" || higher) {
			best = v
		}
	}
	if best == "" {
		return false
	}
	d.convertPrevResult(best)
	d.conf.set("cniVersion", best)
	return true
}

// convertPrevResult drops a result that the version cannot express.
func (d delegate) convertPrevResult(to string) {
	raw, ok := d.conf["prevResult"]
	if !ok {
		return
	}
	delete(d.conf, "prevResult")
	result, err := decodeResult(d.version(), raw)
	if err != nil {
		return
	}
	if result, err = result.GetAsVersion(to); err == nil {
		d.conf.set("prevResult", result)
	}
}

// versions asks a plugin which versions of CNI it knows.
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

// busyWait is how long a program that is being replaced cannot be started, at most.
const busyWait = 5 * time.Second

func (c *call) exec(ctx context.Context, path string, stdin []byte, command string) (stdout []byte, err error) {
	args := c.args
	args.Command = command
	began := time.Now()
	for {
		var out, problems bytes.Buffer
		cmd := exec.CommandContext(ctx, path)
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = args.AsEnv(), bytes.NewReader(stdin), &out, &problems
		if c.inherit != nil {
			cmd.ExtraFiles = []*os.File{c.inherit}
		}
		err := cmd.Run()
		if errors.Is(err, syscall.ETXTBSY) && time.Since(began) < busyWait {
			time.Sleep(busyWait / 50)
			continue
		}
		if err != nil {
			return nil, pluginError(filepath.Base(path), err, out.Bytes(), problems.Bytes())
		}
		_, _ = problems.WriteTo(c.stderr) // only informational
		return out.Bytes(), nil
	}
}

// maxQuoted bounds what is quoted of a plugin's output, in bytes.
const maxQuoted = 2000

// pluginError makes an error of what a plugin printed before it failed.
func pluginError(name string, failed error, stdout, stderr []byte) error {
	e := &types.Error{}
	if json.Unmarshal(stdout, e) == nil && e.Msg != "" {
		e.Msg, e.Code = name+": "+e.Msg, cmp.Or(e.Code, types.ErrInternal)
		return e
	}
	said := strings.TrimSpace(string(stdout) + "\n" + string(stderr))
	if len(said) > maxQuoted {
		said = said[:maxQuoted]
	}
	if said == "" {
		return cniError(types.ErrInternal, "%s: %w", name, failed)
	}
	return cniError(types.ErrInternal, "%s: %w: %s", name, failed, strings.ToValidUTF8(said, "?"))
}

// decodeResult reads a result. One without a version is in that of the configuration: old plugins name none.
func decodeResult(confVersion string, raw []byte) (types.Result, error) {
	var result object
	if err := json.Unmarshal(raw, &result); err != nil {
		return nil, err
	}
	if result == nil {
		return nil, fmt.Errorf("%.40q is no object", raw)
	}
	key, _ := result.key("cniVersion")
	named := result.text("cniVersion")
	if named == "" {
		named = confVersion
	}
	delete(result, key)
	result.set("cniVersion", named)
	return create.Create(named, encode(result))
}
