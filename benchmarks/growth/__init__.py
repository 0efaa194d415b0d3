"""
Measure how CPU time, time and memory grow with the number of messages, the number of attributes and the size of data.

- ``messages``: complete jobs, each in a new process: a stream to columns in Parquet with Spark, a capture to columns in
  Parquet with Spark, and the same without Spark. CPU time is that of all processes of the job (Python and JVM, from
  their start) and of nats-server; memory is the largest proportional set size (PSS) of the job's processes together.
- ``attributes``: events with 0 to 1,000 extension attributes: to and from a message in both modes, columns with Arrow
  and on the JVM.
- ``data``: events with 1 KB to 16 MB of JSON, in the same ways, and published to a stream and read back.

The exponent is the slope of the logarithm of the CPU time over the logarithm of the number, fitted to the numbers from
a sixteenth of the largest one, after the cost of the smallest was subtracted: 1 is linear, 2 quadratic. Needs
``/proc``.

``python -m benchmarks.growth messages|attributes|data|show [--json FILE] [--svg FOLDER] [--markdown]``
"""
