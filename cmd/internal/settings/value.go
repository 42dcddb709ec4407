package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/node"
)

// KindSwitch is the kind of a boolean setting.
const KindSwitch = "bool"

// value converts one field of a configuration from and to text. It implements pflag.Value. If set rejects a text, the
// error lists the accepted values.
type value struct {
	kind  string
	set   func(string) error
	get   func() string
	list  bool     // set appends to the current value
	words []string // the accepted words; nil = any
}

func (v *value) Set(s string) error { return v.set(s) }
func (v *value) String() string {
	if v == nil || v.get == nil { // pflag calls String on a zero value, to learn what a default looks like
		return ""
	}
	return v.get()
}
func (v *value) Type() string { return v.kind }

// text returns a converter for a setting that is a string. kind is the placeholder for the value in the help. The
// converter rejects the empty string, which usually comes from an unset shell variable and would silently select the
// default.
func text[T ~string](kind string, p *T) *value {
	return &value{kind: kind,
		set: func(s string) error {
			if s == "" {
				return errors.New("give a value, or omit the setting")
			}
			*p = T(s)
			return nil
		},
		get: func() string { return string(*p) },
	}
}

// choice returns a converter for a setting that accepts only a few words.
func choice[T ~string](p *T, words ...T) *value {
	names := make([]string, len(words))
	for i, w := range words {
		names[i] = string(w)
	}
	return &value{kind: "word", words: names,
		set: func(s string) error {
			if !slices.Contains(words, T(s)) {
				return errors.New("give one of " + strings.Join(names, ", "))
			}
			*p = T(s)
			return nil
		},
		get: func() string { return string(*p) },
	}
}

// list returns a converter for a list of words. Commas separate the words in the text. If the flag is repeated, its
// words are appended to the list.
func list(kind string, p *[]string) *value {
	return &value{kind: kind, list: true,
		set: func(s string) error {
			for word := range strings.SplitSeq(s, ",") {
				if word = strings.TrimSpace(word); word == "" {
					return errors.New("an element is empty: remove it or the extra comma")
				}
				*p = append(*p, word)
			}
			return nil
		},
		get: func() string { return strings.Join(*p, ",") },
	}
}

// words returns a converter for a list whose elements may contain commas, such as the arguments of a command. Each text
// becomes one element of the list.
func words(p *[]string) *value {
	return &value{kind: "word", list: true,
		set: func(s string) error { *p = append(*p, s); return nil },
		get: func() string { return strings.Join(*p, " ") },
	}
}

// hosts returns a converter for a list of IP addresses, with or without the brackets of a URL.
func hosts(p *[]string) *value {
	v := list("address", p)
	add := v.set
	v.set = func(s string) error { return add(strings.NewReplacer("[", "", "]", "").Replace(s)) }
	return v
}

// number returns a converter for an integer of at least low. kind is the placeholder for the value in the help.
func number(kind string, p *int, low int) *value {
	return &value{kind: kind,
		set: func(s string) error {
			n, err := strconv.Atoi(s)
			if err != nil || n < low {
				return fmt.Errorf("give an integer of at least %d", low)
			}
			*p = n
			return nil
		},
		get: func() string {
			if *p == 0 && low > 0 {
				return "" // not set
			}
			return strconv.Itoa(*p)
		},
	}
}

func port(p *node.Port) *value {
	return &value{kind: "port",
		set: func(s string) error {
			n, err := strconv.ParseUint(s, 10, 16)
			if err != nil {
				return errors.New("give a port from 0 to 65535; 0 picks a free one")
			}
			*p = node.Port{Number: int(n), Given: true}
			return nil
		},
		get: func() string { return strconv.Itoa(p.Number) },
	}
}

// optionalPort returns a converter for a port that is off unless it is given.
func optionalPort(p *node.Port) *value {
	v := port(p)
	show := v.get
	v.get = func() string {
		if !p.Given {
			return ""
		}
		return show()
	}
	return v
}

// flag returns a converter for a boolean setting. It stores the value of the setting in *p, or the opposite value if
// the parameter when is false.
func flag(p *bool, when bool) *value {
	return &value{kind: KindSwitch,
		set: func(s string) error {
			b, err := strconv.ParseBool(s)
			if err != nil {
				return errors.New("give true or false")
			}
			*p = b == when
			return nil
		},
		get: func() string { return strconv.FormatBool(*p == when) },
	}
}

// duration returns a converter for a positive duration. A number without a unit is multiplied by unit.
func duration(p *time.Duration, unit time.Duration) *value {
	return &value{kind: "duration",
		set: func(s string) error {
			d, err := parseDuration(s, unit)
			if err != nil || d <= 0 {
				return errors.New("give a duration above zero, for example 10s, 500ms or 1m30s")
			}
			*p = d
			return nil
		},
		get: func() string { return p.String() },
	}
}

// interval returns a converter for a duration. A number without a unit is in seconds. 0 means never, and is stored as
// -1.
func interval(p *time.Duration) *value {
	return &value{kind: "duration",
		set: func(s string) error {
			d, err := parseDuration(s, time.Second)
			if err != nil || d < 0 {
				return errors.New("give a duration such as 2s, or 0")
			}
			if *p = d; d == 0 {
				*p = -1
			}
			return nil
		},
		get: func() string { return max(*p, 0).String() },
	}
}

func parseDuration(s string, unit time.Duration) (time.Duration, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.ParseDuration(s)
	}
	if n > int64(math.MaxInt64/unit) || n < 0 {
		return 0, strconv.ErrRange
	}
	return time.Duration(n) * unit, nil
}

// size returns a converter for a positive number of bytes. See ParseSize.
func size(p *int64) *value {
	return &value{kind: "size",
		set: func(s string) error {
			n, err := ParseSize(s)
			if err != nil {
				return err
			}
			*p = n
			return nil
		},
		get: func() string { return FormatSize(*p) },
	}
}

// bodySize returns a converter for a size, or for the word unlimited, which is stored as -1.
func bodySize(p *int64) *value {
	v := size(p)
	return &value{kind: v.kind,
		set: func(s string) error {
			if s == unlimited {
				*p = -1
				return nil
			}
			return v.set(s)
		},
		get: func() string {
			if *p < 0 {
				return unlimited
			}
			return v.get()
		},
	}
}

const unlimited = "unlimited"

// level returns a converter for a log level.
func level(p *slog.Level) *value {
	names := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn,
		"error": slog.LevelError}
	return &value{kind: "word", words: []string{"debug", "info", "warn", "error"},
		set: func(s string) error {
			l, ok := names[strings.ToLower(s)]
			if !ok {
				return errors.New("give one of debug, info, warn, error")
			}
			*p = l
			return nil
		},
		get: func() string { return strings.ToLower(p.String()) },
	}
}

// token returns a converter for a list of secrets. Each text becomes one secret, without white space around it. The
// text is not split at commas, because a secret may contain commas.
func token(p *[]node.Secret) *value {
	return &value{kind: "secret",
		set: func(s string) error { *p = append(*p, node.Secret(strings.TrimSpace(s))); return nil },
		get: func() string {
			if len(*p) == 0 {
				return ""
			}
			return (*p)[0].String()
		},
	}
}

// secret returns a converter for one secret. Its text form never shows the secret.
func secret(p *node.Secret) *value {
	return &value{kind: "secret",
		set: func(s string) error { *p = node.Secret(s); return nil },
		get: func() string { return p.String() },
	}
}

// unit is a suffix of a size.
type unit struct {
	suffix string
	bytes  int64
}

// units returns the suffixes, longer ones first, so that the longest match is found.
func units() []unit {
	return []unit{{"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}, {"T", 1e12}, {"G", 1e9},
		{"M", 1e6}, {"k", 1e3}, {"K", 1e3}, {"", 1}}
}

// ParseSize parses a positive number of bytes, such as "4Mi", "4MiB", "500k" or "4194304".
func ParseSize(s string) (int64, error) {
	digits := strings.TrimSuffix(strings.TrimSpace(s), "B")
	for _, u := range units() {
		rest, ok := strings.CutSuffix(digits, u.suffix)
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(rest, 10, 64); err == nil && n > 0 && n <= math.MaxInt64/u.bytes {
			return n * u.bytes, nil
		}
		break
	}
	return 0, errors.New("give a size above zero, in bytes or with a suffix, for example 500k, 4Mi, 1Gi")
}

// FormatSize formats n in the form that ParseSize reads, without rounding.
func FormatSize(n int64) string {
	for _, u := range units() {
		if strings.HasSuffix(u.suffix, "i") && n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}
