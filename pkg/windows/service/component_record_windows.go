package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"flannel/pkg/file"
)

// mark is the description of services that Components created. Those of the scripts
// for PowerShell that did this before have the same one.
const mark = "Made by install-services.ps1 of flannel"

// record is the content of the file that a process is recognized by. Its ID alone
// would not do: Windows gives it to another process when this one has ended.
type record struct {
	ID      uint32 `json:"id"`
	Started int64  `json:"started"` // as Windows counts: in 100 ns since 1601
	Command string `json:"command"` // variables of Component.Env, program and arguments, as one text
}

// needProgram returns an error if the program is missing.
func (w Component) needProgram() error {
	_, err := os.Stat(w.Program)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing, and there is no service %s either", w.Program, w.Name)
	}
	return err
}

// recordFile returns the path of a component's record.
func (c Components) recordFile(name string) string {
	return filepath.Join(c.BaseDir, "run", name+".json")
}

// readRecord returns a record without an ID if there is no file.
func (c Components) readRecord(name string) (r record, err error) {
	path := c.recordFile(name)
	raw, err := file.ReadTrusted(path) // of whatever process the record names, stop ends it
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if file.IsUnjudged(err) {
		return r, fmt.Errorf("read which process %s is: %w", name, err)
	}
	if err != nil {
		return r, fmt.Errorf("read which process %s is: %s: %w; delete this file, and stop %s", name, path, err, name)
	}
	return r, nil
}

// say prints a line about what Components changed or found. It is show with a format.
func (c Components) say(format string, values ...any) {
	_, _ = fmt.Fprintf(c.Out, format+"\n", values...)
}
