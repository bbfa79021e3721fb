package wine

import (
	"encoding/binary"
	"fmt"
	"io"
)

// The DLLs (folder dll), and Dial, speak frames over TCP:
//
//	u32 length of the rest | u32 number of fields | each field: u32 length, bytes      (little endian)
//
// A request's fields are the program that makes it, the name of the call and its arguments, the answer's are the code
// (4 bytes), what the call returns, and the error record, or where the pointers in the former are (u32 each). Calls on one
// connection run one after another.
//
// What a program has open is closed when it ends, and its end is that of a connection. A DLL makes each call on a
// connection of its own; its first one, the call Program, returns what the program is called in all others, and stays open
// until the program ends. A connection whose requests name no program is one itself.

const maxFrame = 64 << 20 // bytes

func readFrame(r io.Reader) ([][]byte, error) {
	var size uint32
	if err := binary.Read(r, binary.LittleEndian, &size); err != nil {
		return nil, err
	}
	if size < 4 || size > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes", size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(b)
	b = b[4:]
	var fields [][]byte
	for ; n > 0; n-- {
		if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
			return nil, io.ErrUnexpectedEOF
		}
		end := 4 + binary.LittleEndian.Uint32(b)
		fields = append(fields, b[4:end])
		b = b[end:]
	}
	return fields, nil
}

func writeFrame(w io.Writer, fields ...[]byte) error {
	b := binary.LittleEndian.AppendUint32(make([]byte, 4), uint32(len(fields)))
	for _, f := range fields {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	_, err := w.Write(b)
	return err
}
