// Command cesql evaluates expressions of CloudEvents SQL: lines {"expression": "...", "event": {...}} in, lines
// {"value": ..., "error": "..."} or {"parse": "..."} out. With an argument it measures the evaluation of the first line
// in nanoseconds, as often as the argument says.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/cloudevents/sdk-go/sql/v2/parser"
	cloudevents "github.com/cloudevents/sdk-go/v2"
)

type question struct {
	Expression string          `json:"expression"`
	Event      json.RawMessage `json:"event"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		line, _ := json.Marshal(answer(asked))
		fmt.Println(string(line))
	}
}

func answer(asked question) (found map[string]any) {
	defer func() {
		if panicked := recover(); panicked != nil {
			found = map[string]any{"panic": fmt.Sprint(panicked)}
		}
	}()
	expression, err := parser.Parse(asked.Expression)
	if err != nil {
		return map[string]any{"parse": err.Error()}
	}
	event := cloudevents.NewEvent()
	if err := json.Unmarshal(asked.Event, &event); err != nil {
		return map[string]any{"event": err.Error()}
	}
	if len(os.Args) > 1 {
		count, _ := strconv.Atoi(os.Args[1])
		begin := time.Now()
		for range count {
			expression.Evaluate(event)
		}
		return map[string]any{"nanoseconds": time.Since(begin).Nanoseconds() / int64(count)}
	}
	value, err := expression.Evaluate(event)
	found = map[string]any{"value": value}
	if err != nil {
		found["error"] = err.Error()
	}
	return found
}
