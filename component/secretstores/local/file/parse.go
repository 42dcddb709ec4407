package file

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// maxDepth bounds the nesting of the file.
const maxDepth = 64

// parser reads the JSON file token by token, so that it can report duplicate names. Decoding into a map would silently
// keep only one of them.
type parser struct {
	options Options
	data    []byte
	dec     *json.Decoder
	secrets map[string]map[string]string
}

// parse reads the secrets of a file. Errors name file and line, and never a value.
func parse(o Options, data []byte) (map[string]map[string]string, error) {
	p := &parser{options: o, data: data, dec: json.NewDecoder(bytes.NewReader(data)),
		secrets: map[string]map[string]string{}}
	p.dec.UseNumber()
	if len(data) > MaxFileSize {
		return nil, p.invalid(0, "the file has more than "+strconv.Itoa(MaxFileSize)+" bytes",
			"split it into several stores")
	}
	open, err := p.token()
	if err != nil {
		return nil, err
	}
	if open != json.Delim('{') {
		return nil, p.problem("the file must hold a JSON object", "")
	}
	if err := p.object(nil); err != nil {
		return nil, err
	}
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, p.problem("something follows the JSON object", "")
	}
	return p.secrets, nil
}

// object reads the rest of an object whose opening brace was already read. path contains the names of the enclosing
// fields.
func (p *parser) object(path []string) error {
	for p.dec.More() {
		name, err := p.token()
		if err != nil {
			return err
		}
		if err := p.value(append(path, name.(string))); err != nil {
			return err
		}
	}
	_, err := p.token()
	return err
}

func (p *parser) array(path []string) error {
	for i := 0; p.dec.More(); i++ {
		if err := p.value(append(path, strconv.Itoa(i))); err != nil {
			return err
		}
	}
	_, err := p.token()
	return err
}

func (p *parser) value(path []string) error {
	if len(path) > maxDepth {
		return p.problem(fmt.Sprintf("the file is nested deeper than %d levels", maxDepth), "")
	}
	token, err := p.token()
	if err != nil {
		return err
	}
	switch v := token.(type) {
	case json.Delim:
		if v == '[' {
			return p.array(path)
		}
		return p.object(path)
	case string:
		return p.keep(path, v)
	case json.Number:
		return p.keep(path, v.String())
	case bool:
		return p.keep(path, strconv.FormatBool(v))
	default: // null: there is no secret here
		return nil
	}
}

// keep adds a value to the secrets, under the name that results from path. It returns an error if this name already has
// a value.
func (p *parser) keep(path []string, value string) error {
	name, key := strings.Join(path, p.options.Separator), ""
	switch {
	case !p.options.MultiValued:
		key = name
	case len(path) == 1:
		key = name
	default:
		name, key = path[0], strings.Join(path[1:], p.options.Separator)
	}
	secret := p.secrets[name]
	if _, twice := secret[key]; twice {
		what := strconv.Quote(name)
		if key != name {
			what += ", key " + strconv.Quote(key) + ","
		}
		return p.problem("the secret "+what+" is given twice",
			"give each secret once; names are joined with nestedSeparator "+strconv.Quote(p.options.Separator))
	}
	if secret == nil {
		secret = make(map[string]string, 1)
		p.secrets[name] = secret
	}
	secret[key] = value
	return nil
}

// token reads the next JSON token. Its errors reveal at most one character of the file, because the file contains
// secrets.
func (p *parser) token() (json.Token, error) {
	token, err := p.dec.Token()
	if err == nil {
		return token, nil
	}
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return nil, p.invalid(syntax.Offset, "this is not JSON: "+syntax.Error(), "")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, p.invalid(int64(len(p.data)), "this is not JSON: the file ends too early", "")
	}
	return nil, p.problem("this is not JSON", "")
}

func (p *parser) problem(msg, hint string) error { return p.invalid(p.dec.InputOffset(), msg, hint) }

func (p *parser) invalid(offset int64, msg, hint string) error {
	line := 1 + bytes.Count(p.data[:min(int(offset), len(p.data))], []byte("\n"))
	return &fault.Error{Code: fault.Corrupt, Op: "file.Read", Msg: fmt.Sprintf("%s:%d: %s", p.options.Path, line, msg),
		Hint: hint}
}
