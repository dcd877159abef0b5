"""CPU and DRAM energy from RAPL, the energy counters of Intel and AMD processors, through Linux's powercap files.

    discovery = discover_cpus()
    for cpu in discovery.cpus:
        print(cpu.name, cpu.read_energy_counters_joules())

The files are described in the kernel's Documentation/power/powercap/powercap.rst. Nothing is read before
`discover_cpus` is called.
"""
