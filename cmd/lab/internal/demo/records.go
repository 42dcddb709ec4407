package demo

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
)

const (
	debianStatus     = "/var/lib/dpkg/status"
	generatedRecords = 3000
	maxLine          = 1 << 20
)

// record is one item to save: a key and JSON text.
type record struct {
	key   string
	value []byte
}

// parse reads records in the format of Debian control files: paragraphs of "Field: value" lines. A line that starts
// with a blank continues the previous field.
func parse(r io.Reader) ([]record, error) {
	var records []record
	fields, last := map[string]string{}, ""
	flush := func() error {
		if len(fields) == 0 {
			return nil
		}
		rec, err := newRecord(fields)
		records, fields, last = append(records, rec), map[string]string{}, ""
		return err
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		name, value, isField := strings.Cut(line, ":")
		switch {
		case strings.TrimSpace(line) == "":
			if err := flush(); err != nil {
				return nil, err
			}
		case last != "" && (line[0] == ' ' || line[0] == '\t'):
			fields[last] += "\n" + line
		case isField && name != "":
			last = name
			fields[name] = strings.TrimSpace(value)
		default:
			return nil, fmt.Errorf("line %d is not a field of a record: %q", n, line)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return records, flush()
}

// newRecord returns the record to save for the fields of a package. The key consists of the name and the architecture
// of the package.
func newRecord(fields map[string]string) (record, error) {
	value, err := json.Marshal(fields)
	if err != nil {
		return record{}, err
	}
	return record{"package/" + fields["Package"] + "/" + fields["Architecture"], value}, nil
}

// generate returns n records that look like packages. They are the same every time.
func generate(n int) []record {
	random := rand.New(rand.NewPCG(1, 2)) // a fixed seed, so that the records are always the same
	records := make([]record, n)
	for i := range records {
		fields := map[string]string{
			"Package":        fmt.Sprintf("example-%04d+dev", i),
			"Architecture":   "all",
			"Version":        fmt.Sprintf("%d.%d-%d", random.IntN(9), random.IntN(99), random.IntN(9)),
			"Installed-Size": fmt.Sprint(random.IntN(1 << 20)),
			"Description":    strings.Repeat("a \"quoted\" <word> & é, ", 1+random.IntN(60)),
		}
		records[i], _ = newRecord(fields) // marshalling a map of strings cannot fail
	}
	return records
}
