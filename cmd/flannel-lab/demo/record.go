package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// Output is where a demo is written to. The caller closes the writers. Their errors do not
// end the demo: to see those of Record, use a bufio.Writer, which keeps the first one.
type Output struct {
	Terminal io.Writer
	Record   io.Writer // gets the same as an asciicast; nil: no recording
}

// The terminal of a recording. The header of an asciicast must have its size.
const (
	castColumns = 110
	castRows    = 30
)

// maxPause is the longest pause in a recording.
const maxPause = 500 * time.Millisecond

// colours matches the escape sequences of paint.
var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// recording writes an asciicast of version 2, which players of asciinema read
// (https://docs.asciinema.org/manual/asciicast/v2): a line with a header, and one for
// each output with its time.
type recording struct {
	lines *json.Encoder
	last  time.Time     // when the last output was written
	at    time.Duration // its time in the recording, in which pauses are shorter
}

func newRecording(w io.Writer) (*recording, error) {
	r := &recording{lines: json.NewEncoder(w), last: time.Now()}
	r.lines.SetEscapeHTML(false)
	header := struct {
		Version int    `json:"version"`
		Width   int    `json:"width"`
		Height  int    `json:"height"`
		Title   string `json:"title"`
	}{2, castColumns, castRows, "flannel-lab demo"}
	if err := r.lines.Encode(header); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return r, nil
}

// write records an output. A terminal needs a carriage return before each line feed.
func (r *recording) write(text string) {
	now := time.Now()
	r.at += min(now.Sub(r.last), maxPause)
	r.last = now
	text = strings.ReplaceAll(text, "\n", "\r\n")
	_ = r.lines.Encode([]any{r.at.Round(time.Millisecond).Seconds(), "o", text})
}
